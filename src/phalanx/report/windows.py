"""A few typical steps of a run, cut out of the middle of its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from phalanx.observe.timeline import RankLog, Step

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
    """A stretch of a step, in seconds from the start of the window."""

    part: str
    start: float
    seconds: float
    first: bool
    """It opens a step."""


@dataclass(frozen=True)
class Window:
    """What each rank did in one span of time."""

    lanes: tuple[tuple[int, tuple[Bar, ...]], ...]
    switch: float | None = None


def usual_span(ranks: Sequence[RankLog]) -> float | None:
    """The time of a handful of steps of this run."""
    steps = [step.seconds for log in ranks for step in log.steps]
    return STEPS_SHOWN * median(steps) if steps else None


def cut_window(ranks: Sequence[RankLog], span: float) -> Window:
    """``span`` seconds around the switch, or else from a typical step in mid-training on."""
    switches = [log.switches[0].time for log in ranks if log.switches]
    begin = switches[0] - span / 2 if switches else _typical_begin(ranks)
    lanes = tuple((log.rank, tuple(_bars(log.steps, begin, span))) for log in ranks)
    return Window(lanes, span / 2 if switches else None)


def _typical_begin(ranks: Sequence[RankLog]) -> float:
    """The start of a step of middling length in the middle half of the training."""
    log = max(ranks, key=lambda log: len(log.steps))
    count = len(log.steps)
    middle = log.steps[count // 4 : max(count // 4 + 1, 3 * count // 4)]
    usual = median(step.seconds for step in middle)
    centre = count // 2
    near = min(middle, key=lambda s: (round(abs(s.seconds - usual) / usual, 2) if usual else 0.0,
                                      abs(s.number - centre)))  # fmt: skip
    return near.began


def _bars(steps: Sequence[Step], begin: float, span: float) -> Iterator[Bar]:
    for step in steps:
        if step.ended <= begin or step.began >= begin + span:
            continue
        clock = step.began - begin
        for index, (name, part) in enumerate(_PARTS):
            seconds: float = getattr(step, name)
            start, end = max(clock, 0.0), min(clock + seconds, span)
            opens = index == 0 and clock >= 0
            if end > start or opens:
                yield Bar(part, start, max(end - start, 0.0), opens)
            clock += seconds
