"""A few typical steps of a run, cut out of the middle of its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from phalanx.observe.events.timeline import RankLog, WorkerStep

STEPS_SHOWN = 5
_PARTS = (
    ("input", "input"),
    ("compute", "compute"),
    ("send", "communicate"),
    ("wait", "wait"),
    ("reduce", "communicate"),
    ("update", "update"),
    ("settle", "wait"),
)


@dataclass(frozen=True)
class Bar:
    """One part of a step, in seconds from the start of the window."""

    part: str
    start: float
    seconds: float
    first: bool
    """Whether this is the first part of its step."""


@dataclass(frozen=True)
class TimelineWindow:
    """The parts of steps of each rank in one span of time."""

    lanes: tuple[tuple[int, tuple[Bar, ...]], ...]
    switch: float | None = None


def usual_span(ranks: Sequence[RankLog]) -> float | None:
    """Return the usual seconds of ``STEPS_SHOWN`` steps of this run."""
    steps = [step.seconds for log in ranks for step in log.steps]
    return STEPS_SHOWN * median(steps) if steps else None


def cut_window(ranks: Sequence[RankLog], span: float) -> TimelineWindow:
    """Cut ``span`` seconds around a switch or a round, or else from a typical step on."""
    switches = next((log.switches for log in ranks if log.switches), [])
    moment = switches[len(switches) // 2].time if switches else None
    begin = _typical_begin(ranks, span) if moment is None else moment - span / 2
    begin = max(begin, min(log.steps[0].began for log in ranks))
    lanes = tuple((log.rank, tuple(_bars(log.rows, begin, span))) for log in ranks)
    return TimelineWindow(lanes, None if moment is None else moment - begin)


def _typical_begin(ranks: Sequence[RankLog], span: float) -> float:
    """Return the start of a step of median length in the middle half of the training.

    If workers train independently, a typical round is in the middle of the window instead.
    """
    apart = max(ranks, key=lambda log: len(log.rounds)).rounds
    if apart:
        met = _typical(apart)
        return met.began + met.seconds / 2 - span / 2
    return _typical(max(ranks, key=lambda log: len(log.steps)).steps).began


def _typical(steps: Sequence[WorkerStep]) -> WorkerStep:
    count = len(steps)
    middle = list(enumerate(steps))[count // 4 : max(count // 4 + 1, 3 * count // 4)]
    usual = median(step.seconds for _, step in middle)

    def oddity(place: tuple[int, WorkerStep]) -> tuple[float, int]:
        off = round(abs(place[1].seconds - usual) / usual, 2) if usual else 0.0
        return off, abs(place[0] - count // 2)

    return min(middle, key=oddity)[1]


def _bars(steps: Sequence[WorkerStep], begin: float, span: float) -> Iterator[Bar]:
    for step in steps:
        if step.ended <= begin or step.began >= begin + span:
            continue
        clock = step.began - begin
        if step.hidden:
            start, end = max(step.ready - step.hidden - begin, 0.0), min(step.ready - begin, span)
            yield Bar("hidden", start, max(end - start, 0.0), first=False)
        for index, (name, part) in enumerate(_PARTS):
            seconds: float = getattr(step, name)
            start, end = max(clock, 0.0), min(clock + seconds, span)
            opens = index == 0 and clock >= 0 and not step.is_round
            if end > start or opens:
                yield Bar(part, start, max(end - start, 0.0), opens)
            clock += seconds
