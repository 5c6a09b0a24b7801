"""Who the others wait for, and what that costs them.

In lockstep everyone waits for the last gradient. The worker that is last is not the one that
waits long but the one that waits least, so blame is read from the moment each gradient was
ready, before any barrier. Workers that train apart are last when they come to a round last; where
no worker may be too far ahead, all waiting is for the slowest; asynchronous workers wait for none,
so a slow one costs only what it does not do itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from phalanx.observe.events.strategy_phases import PhaseSteps, WaitRule
from phalanx.observe.events.timeline import WorkerStep

SHARE_OF_COST = 0.03
"""A straggler is worth naming when the others lose at least this share of their time to it,"""
SLOWER = 1.5
"""or when it is at least so many times slower than they are, whether anybody waits or not."""


LAST = 1.5
"""A straggler comes last so many times as often as chance would have it."""
ENOUGH_STEPS = 3


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that is last most often, or the slowest one."""

    rank: int
    share: float
    """The part of the meetings (lockstep steps, rounds) to which it came last."""
    steps: int
    """How many meetings there were."""
    seconds: float
    """What the other workers together waited for it."""
    cost: float = 0.0
    """The same as a share of those workers' time."""
    slower: float | None = None
    """Its time per sample (input and compute) as a multiple of the others' median."""
    waiting: str = "lockstep"
    """Who waits: ``lockstep``, ``bounded`` (only those too far ahead) or ``nobody``."""


@dataclass
class _Tally:
    meetings: int = 0
    last: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    cost: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds that others waited, by the rank they waited for."""

    def add(self, row: Sequence[WorkerStep]) -> None:
        late = max(row, key=lambda step: step.ready)
        self.meetings += 1
        self.last[late.rank] += 1
        # What came earlier may also have been sent meanwhile: that is no waiting.
        self.cost[late.rank] += sum(min(late.ready - s.ready, s.wait + s.settle) for s in row)


def find_straggler(phases: Sequence[PhaseSteps], balanced: float | None = None) -> Straggler | None:
    """The clear straggler, or ``None``; from the moment ``balanced`` on shares were unequal."""
    paces, tally = _paces(phases, balanced), _Tally()
    if len(paces) < 2:
        return None
    slowest = max(paces, key=lambda rank: paces[rank])
    for phase in phases:
        if phase.waiting is WaitRule.LOCKSTEP:
            for row in _meetings(phase):
                tally.add(row)
        elif phase.waiting is WaitRule.BOUNDED:
            tally.cost[slowest] += _waited(phase, slowest)
    rules = {phase.waiting for phase in phases if any(phase.steps)}
    strictest = (WaitRule.LOCKSTEP, WaitRule.BOUNDED, WaitRule.NOBODY)
    waiting = next((rule for rule in strictest if rule in rules), WaitRule.NOBODY).value
    last = max(sorted(tally.last), key=lambda rank: tally.last[rank], default=slowest)
    for rank in (last, slowest):
        # The others' time, in steps and rounds.
        rows = (rows for phase in phases for rows in (*phase.steps, *phase.rounds))
        spent = sum(row.seconds for part in rows for row in part if row.rank != rank)
        others = [pace for other, pace in paces.items() if other != rank]
        found = Straggler(
            rank=rank,
            share=tally.last[rank] / tally.meetings if tally.meetings else 0.0,
            steps=tally.meetings,
            seconds=tally.cost[rank],
            cost=tally.cost[rank] / spent if spent > 0.0 else 0.0,
            slower=paces[rank] / median(others) if rank in paces and others else None,
            waiting=waiting,
        )
        # Of equal workers each is last by chance now and then, one of two half of the time.
        came_last = found.share >= max(0.5, LAST / len(paces)) or not tally.meetings
        costly = came_last and found.cost >= SHARE_OF_COST
        if costly or (rank == slowest and (found.slower or 0.0) >= SLOWER):
            return found
    return None


def _paces(phases: Sequence[PhaseSteps], balanced: float | None) -> dict[int, float]:
    """Seconds of input and compute per sample, by rank: a typical step's.

    At equal shares, if there were any: with few samples a step is mostly what every step costs.
    """
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for step in (step for phase in phases for steps in phase.steps for step in steps):
        if step.samples:
            pace = (step.input + step.compute) / step.samples
            found[step.rank].append((step.ended, pace))
    equal = {
        r: [pace for end, pace in rows if end <= (balanced or end)] for r, rows in found.items()
    }
    if any(len(rows) < ENOUGH_STEPS for rows in equal.values()):
        equal = {rank: [pace for _, pace in rows] for rank, rows in found.items()}
    return {rank: pace for rank in sorted(equal) if (pace := median(equal[rank])) > 0.0}


def _meetings(phase: PhaseSteps) -> Iterator[tuple[WorkerStep, ...]]:
    """What the workers of a team did together, one row of each.

    Counted from the start of each epoch: after asynchronous phases the ranks' numbers differ, and
    a rank without samples of a short last batch has no row of it.
    """
    together = phase.rounds if any(phase.rounds) else phase.steps
    for team in sorted(set(phase.teams)):
        members = [rows for rows, own in zip(together, phase.teams, strict=True) if own == team]
        if len(members) > 1:
            parts = [_by_epoch(rows) for rows in members]
            for epoch in sorted(set().union(*parts)):
                yield from zip(*(part.get(epoch, []) for part in parts), strict=False)


def _by_epoch(rows: Sequence[WorkerStep]) -> dict[int, list[WorkerStep]]:
    found: dict[int, list[WorkerStep]] = defaultdict(list)
    for row in rows:
        found[row.epoch].append(row)
    return dict(found)


def _waited(phase: PhaseSteps, slowest: int) -> float:
    return sum(step.wait for steps in phase.steps for step in steps if step.rank != slowest)
