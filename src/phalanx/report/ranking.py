"""The finished rows of a comparison, ranked by time and by quality. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.report.agreement import agreements
from phalanx.report.load import Spread, StudyData, train_seconds
from phalanx.report.noise import NOISE, Difference, judge_quality, judge_times
from phalanx.report.quality import Quality


@dataclass(frozen=True)
class Competitor:
    """One row of the comparison."""

    label: str
    strategy: str
    batch: int | None
    seconds: Spread
    quality: Spread | None = None
    workers: int | None = None
    threads: int | None = None
    """Threads of all workers together."""


@dataclass(frozen=True)
class Ranking:
    """The best row and those equal to it within noise (front), and the best other row (rival)."""

    front: tuple[Competitor, ...]
    rival: Competitor | None
    difference: Difference

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(competitor.label for competitor in self.front)


def rank_times(rows: Sequence[Competitor]) -> Ranking:
    ordered = sorted(rows, key=lambda row: row.seconds.middle)
    return _rank(ordered, judge)


def judge(a: Competitor, b: Competitor) -> Difference:
    """Judge two times; a gain that more workers cannot explain is never clear."""
    found = judge_times(a.seconds, b.seconds)
    return Difference.TENTATIVE if found is Difference.CLEAR and is_implausible(a, b) else found


def is_implausible(fast: Competitor, slow: Competitor) -> bool:
    """Whether ``single`` was slower than the number of workers of ``fast`` can explain."""
    if slow.strategy != "single" or not fast.workers or fast.seconds.middle <= 0.0:
        return False
    return slow.seconds.middle / fast.seconds.middle > (1.0 + NOISE) * fast.workers


def rank_quality(rows: Sequence[Competitor], quality: Quality) -> Ranking | None:
    known = [row for row in rows if row.quality]
    if len(known) < 2:
        return None

    def by_quality(a: Competitor, b: Competitor) -> Difference:
        assert a.quality and b.quality
        return judge_quality(a.quality, b.quality, quality)

    sign = -1 if quality.higher_is_better else 1
    ordered = sorted(known, key=lambda row: sign * row.quality.middle if row.quality else 0.0)
    return _rank(ordered, by_quality)


def _rank(
    ordered: Sequence[Competitor], judge: Callable[[Competitor, Competitor], Difference]
) -> Ranking:
    front: list[Competitor] = [ordered[0]]
    rest: list[Competitor] = []
    for row in ordered[1:]:
        (front if judge(ordered[0], row) is Difference.NOISE else rest).append(row)
    rival = rest[0] if rest else None
    difference = judge(ordered[0], rival) if rival else Difference.NOISE
    return Ranking(tuple(front), rival, difference)


def competitors(study: StudyData, quality: Quality) -> list[Competitor]:
    """Return the groups that have a finished run, a known time, and losses that agree."""
    rows = []
    for group, found in zip(study.groups, agreements(study.groups), strict=True):
        spread = group.spread(train_seconds) if group.done and found.comparable else None
        if spread:
            score = group.spread(quality.get)
            threads = [worker.threads for worker in group.shown.summary.per_worker]
            rows.append(
                Competitor(
                    group.label, group.strategy, group.batch, spread, score, group.workers,
                    sum(t or 0 for t in threads) if all(threads) else None,
                )
            )  # fmt: skip
    return rows
