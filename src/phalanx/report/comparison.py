"""The verdict of a comparison, in words that agree with the numbers. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core import words
from phalanx.report.noise import Difference, judge_quality
from phalanx.report.quality import Quality
from phalanx.report.ranking import (
    Competitor,
    Ranking,
    is_implausible,
    judge,
    rank_quality,
    rank_times,
)


@dataclass(frozen=True)
class ComparisonVerdict:
    """The sentence of the verdict, its claims, and further remarks."""

    sentence: str
    fastest: tuple[str, ...] = ()
    best: tuple[str, ...] = ()
    time: Difference = Difference.NOISE
    quality: Difference = Difference.NOISE
    remarks: tuple[str, ...] = ()


def decide(rows: Sequence[Competitor], quality: Quality) -> ComparisonVerdict:
    """Return the verdict on the finished rows."""
    if not rows:
        return ComparisonVerdict("No run finished, so there is nothing to compare.")
    if len(rows) == 1:
        return ComparisonVerdict(_alone(rows[0], quality), (rows[0].label,), (rows[0].label,))
    times, ranks = rank_times(rows), rank_quality(rows, quality)
    return ComparisonVerdict(
        sentence=_sentence(times, ranks, quality, rows),
        fastest=times.labels,
        best=ranks.labels if ranks else (),
        time=times.difference,
        quality=ranks.difference if ranks else Difference.NOISE,
        remarks=tuple(_remarks(rows, quality)),
    )


def _alone(row: Competitor, quality: Quality) -> str:
    reached = f" and reached {quality.say(row.quality.middle)}" if row.quality else ""
    return f"{row.label} trained in {words.seconds(row.seconds.middle)}{reached}."


def _sentence(
    times: Ranking, ranks: Ranking | None, quality: Quality, rows: Sequence[Competitor]
) -> str:
    if ranks is None:
        return f"{_time_clause(times)}."
    if times.rival is None and ranks.rival is None:
        return (
            f"The difference is noise: {words.listed([row.label for row in rows])} all took "
            f"{_range(times.front)} and reached {_quality_range(ranks.front, quality)}."
        )
    return f"{_time_clause(times)}{_quality_clause(times, ranks, quality)}."


def _time_clause(times: Ranking) -> str:
    first = times.front[0]
    if times.rival is None:
        return f"No measurable difference in time ({_range(times.front)}: noise)"
    verb = _verb(times, "was", "were")
    took, rival = words.seconds(first.seconds.middle), times.rival
    gain = f"{_faster(first.seconds.middle, rival.seconds.middle)} than {rival.label}"
    against = words.seconds(rival.seconds.middle)
    if len(times.front) == 1:
        return f"{first.label} {verb} fastest: {gain} ({took} against {against})"
    alike = f"alike within noise ({_range(times.front)})"
    return (
        f"{words.listed(times.labels)} {verb} fastest, {alike}: {gain} ({took} against {against})"
    )


def _verb(ranking: Ranking, one: str, many: str) -> str:
    """Return the verb: a difference that single runs cannot prove only *looks* like one."""
    if ranking.difference is Difference.TENTATIVE:
        return "looks" if len(ranking.front) == 1 else "look"
    return one if len(ranking.front) == 1 else many


def _faster(short: float, long: float) -> str:
    return f"{words.percent(100 * (1 - short / long))} less time"


def _range(rows: Sequence[Competitor]) -> str:
    low = words.seconds(min(row.seconds.middle for row in rows))
    high = words.seconds(max(row.seconds.middle for row in rows))
    return low if low == high else words.span(low, high)


def _quality_range(rows: Sequence[Competitor], quality: Quality) -> str:
    values = [row.quality.middle for row in rows if row.quality]
    low, high = quality.number(min(values)), quality.number(max(values))
    return f"{low if low == high else words.span(low, high)} {quality.name}"


def _quality_clause(times: Ranking, ranks: Ranking, quality: Quality) -> str:
    """Say how good the fastest row is, or, if no row was fastest, which one is best."""
    if ranks.rival is None:
        return f"; {_quality_range(ranks.front, quality)}: no difference beyond noise"
    best = ranks.front[0]
    fastest = next((row for row in times.front if row in ranks.front), times.front[0])
    alone = len(times.front) == 1
    figure = f"its {quality.name}" if alone else f"the {quality.name} of {fastest.label}"
    assert best.quality and ranks.rival.quality
    if times.rival is None or fastest.quality is None:
        gap = quality.gap(best.quality.middle, ranks.rival.quality.middle)
        verb = {Difference.CLEAR: "had", Difference.TENTATIVE: "seems to have had"}
        told = f"{best.label} {verb[ranks.difference]} the best {quality.name}"
        return f"; {told} ({quality.number(best.quality.middle)}, {gap} than {ranks.rival.label})"
    if fastest in ranks.front:
        return f", and {figure} is {_among(fastest, ranks, quality)}"
    gap = quality.gap(fastest.quality.middle, best.quality.middle)
    own, other = fastest.quality.middle, best.quality.middle
    return (
        f", but {figure} is {gap} than that of {best.label} "
        f"({quality.number(own)} against {quality.number(other)})"
    )


def _among(fastest: Competitor, ranks: Ranking, quality: Quality) -> str:
    assert fastest.quality and ranks.rival and ranks.rival.quality
    own = quality.number(fastest.quality.middle)
    if len(ranks.front) > 1:
        return f"as good as the best within noise ({own})"
    gap = quality.gap(fastest.quality.middle, ranks.rival.quality.middle)
    return f"the best: {own}, {gap} than {ranks.rival.label}"


def _remarks(rows: Sequence[Competitor], quality: Quality) -> list[str]:
    remarks = [worth] if (worth := worth_distributing(rows, quality)) else []
    remarks += _unequal_threads(rows)
    repeats = min(len(row.seconds.values) for row in rows)
    if repeats == 1:
        which = "Each" if all(len(row.seconds.values) == 1 for row in rows) else "Some"
        remarks.append(
            f"{which} ran once. Identical runs on small machines differ by up to 30 %, so a "
            "difference below that needs --repeat 3 to be trusted, and one below 5 % counts as "
            "noise."
        )
    else:
        remarks.append(f"Medians of at least {repeats} runs each.")
    return remarks


def _unequal_threads(rows: Sequence[Competitor]) -> list[str]:
    known = {row.label: row.threads for row in rows if row.threads}
    if len(set(known.values())) < 2 or not any(row.strategy == "single" for row in rows):
        return []
    told = words.listed([f"{label} with {threads}" for label, threads in known.items()])
    return [f"They used different numbers of threads in total: {told}."]


def worth_distributing(rows: Sequence[Competitor], quality: Quality) -> str | None:
    """Say whether many workers beat one, if ``single`` is among the rows.

    A fast run with a worse model is no gain, so the fastest row that is as good as ``single`` is
    preferred.
    """
    alone = [row for row in rows if row.strategy == "single"]
    others = [row for row in rows if row.strategy != "single"]
    if not alone or not others:
        return None
    single = min(alone, key=lambda row: row.seconds.middle)
    as_good = [row for row in others if not _worse(row, single, quality)]
    best = min(as_good or others, key=lambda row: row.seconds.middle)
    difference = judge(best, single)
    mine, theirs = (words.seconds(row.seconds.middle) for row in (best, single))
    figures = f"({mine} against {theirs})"
    if difference is Difference.NOISE:
        return (
            f"Distributing made no measurable difference: {best.label} and {single.label} "
            f"took the same time within noise {figures}{_price(single, best, quality)}."
        )
    sure = difference is Difference.CLEAR
    one, many = single.seconds.middle, best.seconds.middle
    if is_implausible(best, single):
        return (
            f"Doubtful: {best.label} was {one / many:.1f} times as fast as {single.label} "
            f"{figures}, more than {best.workers} workers can be by themselves. Something held "
            f"{single.label} up: other work on this machine, or threads that wait for each other "
            "(compare with OMP_NUM_THREADS=1). Repeat it on a quiet machine"
            f"{'' if len(best.seconds.values) > 2 else ', with --repeat 3'}."
        )
    if many < one:
        paid = "paid off" if sure else "seems to have paid off"
        told = paid if as_good else "was faster, but at a price"
        gain = f"{best.label} took {_faster(many, one)} than {single.label}"
        return f"Distributing {told}: {gain} {figures}{_price(single, best, quality)}."
    told = "did not pay off" if sure else "does not seem to have paid off"
    fastest = "the fastest of the distributed runs"
    fastest += " that are as good" if 0 < len(as_good) < len(others) else ""
    return (
        f"Distributing {told} here: {best.label}, {fastest}, took "
        f"{words.percent(100 * (many / one - 1))} longer than {single.label} {figures}."
    )


def _worse(row: Competitor, single: Competitor, quality: Quality) -> bool:
    """Whether ``row`` is worse than ``single`` by more than noise."""
    if not row.quality or not single.quality:
        return False
    own, other = row.quality.middle, single.quality.middle
    behind = own < other if quality.higher_is_better else own > other
    return behind and judge_quality(row.quality, single.quality, quality) is not Difference.NOISE


def _price(single: Competitor, best: Competitor, quality: Quality) -> str:
    if not single.quality or not best.quality:
        return ""
    if judge_quality(single.quality, best.quality, quality) is Difference.NOISE:
        return f", at the same {quality.name} within noise"
    return f", with {quality.gap(best.quality.middle, single.quality.middle)} {quality.name}"
