"""Every worker's part, and the one the others waited for."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.core import words
from phalanx.report.findings import balance_sentence, of_group, shares, straggler_sentence
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.sections import Grid, Section

HEAD = ("strategy", "worker", "machine", "device", "threads", "steps", "samples", "share",
        "samples/s", "waiting", "mean staleness", "peak memory")  # fmt: skip
STRAGGLERS = ("strategy", "straggler", "its time per sample", "came last", "others waited",
              "of their time", "shares at the end, %", "changes of shares")  # fmt: skip
STRAGGLERS_NOTE = (
    "The straggler is the worker that comes last, not one that waits. Its time "
    "per sample is a multiple of the others', before shares changed. Asynchronous workers do not "
    "wait for it."
)
MOST_TOLD = 2
"""Strategies whose stragglers are described in sentences; of more there is a table."""


def section(study: StudyData) -> Section | None:
    """A row per worker of each strategy's typical run."""
    rows = tuple(row for group in study.groups for row in _rows(group))
    if not rows:
        return None
    if len(study.groups) > MOST_TOLD:
        stragglers = tuple(row for group in study.groups for row in _straggler(group))
        found = (Grid(STRAGGLERS, stragglers, STRAGGLERS_NOTE),) if stragglers else ()
        return Section("Workers", 700, grids=(*found, Grid(HEAD, rows)))
    told = tuple(line for group in study.groups for line in _told_of(group, study))
    return Section("Workers", 700, lines=told, grids=(Grid(HEAD, rows),))


def _straggler(group: RunGroup) -> Iterator[tuple[str, ...]]:
    summary = group.shown.summary
    late, balance = summary.straggler, summary.balance
    if late is None:
        return
    nobody = late.waiting == "nobody"
    yield (
        group.label,
        f"worker {late.rank}",
        words.UNKNOWN if late.slower is None else f"× {late.slower:.1f}",
        words.rough_share(late.share) if late.steps else words.UNKNOWN,
        "no one" if nobody else words.seconds(late.seconds),
        words.UNKNOWN if nobody else words.rough_share(late.cost),
        shares(summary.shares) if summary.shares else "equal",
        words.count(balance.changes if balance else 0),
    )


def _rows(group: RunGroup) -> Iterator[tuple[str, ...]]:
    for worker in group.shown.summary.per_worker:
        stale = worker.mean_staleness
        yield (
            group.label,
            str(worker.rank),
            worker.machine or words.UNKNOWN,
            worker.device or words.UNKNOWN,
            words.count(worker.threads),
            words.count(worker.steps),
            words.count(worker.samples),
            words.rough_share(worker.share),
            words.count(worker.samples_per_second),
            words.rough_share(worker.wait_share),
            words.UNKNOWN if stale is None else f"{stale:.2f}",
            words.size(worker.peak_memory_bytes),
        )


def _told_of(group: RunGroup, study: StudyData) -> Iterator[str]:
    """The true straggler, named, and what balance did about it."""
    summary = group.shown.summary
    for sentence in (straggler_sentence(summary), balance_sentence(summary)):
        if sentence:
            yield of_group(group, study, sentence)
