"""The steps of a run, split by the phases of its strategy as they really happened.

The plan does not show this: a straggler, ``phalanx switch`` or a checkpoint may have changed the
phases. The events show in which phase each training began, and every switch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from phalanx.core.errors import InputError
from phalanx.core.spec import Phase, parse_spec
from phalanx.observe.events.event_types import Switched
from phalanx.observe.events.timeline import RankLog, WorkerStep

_CLOCK_ERROR = 1e-6
"""Seconds by which a sum of durations may differ from the clock."""
_DEFAULT_GROUP = 2


class WaitRule(Enum):
    """Which workers wait for which other workers."""

    LOCKSTEP = "lockstep"
    """In every step or round, all workers of a team wait for its last."""
    BOUNDED = "bounded"
    """Workers that are too far ahead wait for the slowest."""
    NOBODY = "nobody"


@dataclass(frozen=True)
class PhaseSteps:
    """The steps of one phase of the strategy: a list per rank, in the order of the ranks."""

    name: str
    lockstep: bool
    steps: list[list[WorkerStep]]
    rounds: list[list[WorkerStep]] = field(default_factory=list)
    waiting: WaitRule = WaitRule.NOBODY
    teams: tuple[int, ...] = ()
    """The team of each rank."""


def split_phases(ranks: Sequence[RankLog], strategy: str) -> list[PhaseSteps]:
    """Return the steps of each phase, in the order of time."""
    spoken = next((log.switches for log in ranks if log.switches), [])
    turns = [_turns(log, spoken, strategy) for log in ranks]
    names = [name for _, name in max(turns, key=len, default=[])]
    steps = [_cut(log.steps, turn, names) for log, turn in zip(ranks, turns, strict=True)]
    rounds = [_cut(log.rounds, turn, names) for log, turn in zip(ranks, turns, strict=True)]
    return [
        _described(name, [part[i] for part in steps], [part[i] for part in rounds], ranks)
        for i, name in enumerate(names)
    ]


def _turns(log: RankLog, spoken: Sequence[Switched], strategy: str) -> list[tuple[float, str]]:
    """Return when this rank began each phase. Only the first worker reports switches."""
    first = spoken[0].before if spoken else _first_label(strategy)
    joins = [(joined.time, joined.phase or first) for joined in log.joins]
    switches = [(switch.time, switch.after) for switch in log.switches or spoken]
    return sorted([*(joins or [(0.0, first)]), *switches])


def _first_label(strategy: str) -> str:
    try:
        return parse_spec(strategy).phases[0].label
    except InputError:
        return strategy


def _cut(
    steps: Sequence[WorkerStep], turns: Sequence[tuple[float, str]], names: Sequence[str]
) -> list[list[WorkerStep]]:
    ends = [time for time, _ in turns[1:]]
    parts: list[list[WorkerStep]] = [[] for _ in names]
    for step in steps:
        # A switch is reported when its first step has begun, so that step contains the moment.
        parts[bisect_left(ends, step.ended - _CLOCK_ERROR)].append(step)
    return parts


def _described(
    name: str,
    steps: list[list[WorkerStep]],
    rounds: list[list[WorkerStep]],
    ranks: Sequence[RankLog],
) -> PhaseSteps:
    try:
        phase = parse_spec(name).phases[0]
    except InputError:
        return PhaseSteps(name, False, steps, rounds)
    traits = phase.traits
    waiting = WaitRule.LOCKSTEP if traits.lockstep or traits.grouped else WaitRule.NOBODY
    if waiting is WaitRule.NOBODY and traits.balanced:
        waiting = WaitRule.BOUNDED
    return PhaseSteps(name, traits.lockstep, steps, rounds, waiting, _teams(phase, ranks))


def _teams(phase: Phase, ranks: Sequence[RankLog]) -> tuple[int, ...]:
    """Return the team of each rank. Groups by speed are formed while training, so the files do not
    show them: each rank is then a team."""
    if not phase.traits.grouped:
        return (0,) * len(ranks)
    by = phase.options.get("by", "rank")
    if by == "machine":
        places = [log.joined.machine if log.joined else "" for log in ranks]
        return tuple(places.index(place) for place in places)
    size = int(phase.options.get("size", _DEFAULT_GROUP)) if by == "rank" else 1
    return tuple(log.rank // size for log in ranks)
