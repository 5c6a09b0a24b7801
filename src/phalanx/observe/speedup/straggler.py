"""Finds the worker that the others wait for, and what that costs them.

In lockstep all workers wait for the last gradient. The last worker waits least, not longest, so it
is found by when each gradient was ready, before any barrier. For workers that train apart, the last
one to come to a round counts. If no worker may be too far ahead, all wait for the slowest.
Asynchronous workers never wait, so a slow one costs only the work that it does not do.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

import msgspec

from phalanx.observe.events.strategy_phases import PhaseSteps, WaitRule
from phalanx.observe.events.timeline import WorkerStep

SHARE_OF_COST = 0.03
"""A straggler is worth naming when the others lose at least this share of their time to it,"""
SLOWER = 1.5
"""or when it is at least so many times slower than they are, even if no worker waits."""
ALSO_ON_AVERAGE = 1.3
"""On a crowded machine every worker's steps are short or long by chance, and so is their median; a
worker that is slow is slower on average, too."""


LAST = 1.5
"""A straggler is last so many times as often as by chance,"""
MOST_OF_COST, OF_TWO, OFTEN = 0.7, 1.7, 1.2
"""or this part of all waiting is for it (of two workers, half so many times), and it is last so
many times as often as by chance."""
ENOUGH_STEPS = 3
WARM_UP, MEASURED = 16, 32
"""The busiest worker's first steps are left out, because models are compared and checked in them;
so many steps have to follow."""


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that is last most often, or the slowest one."""

    rank: int
    share: float
    """The part of the meetings (lockstep steps, rounds) to which it came last."""
    steps: int
    """How many meetings there were."""
    seconds: float
    """Seconds that the other workers together waited for this one."""
    cost: float = 0.0
    """Those seconds as a share of the other workers' time."""
    slower: float | None = None
    """Its time per sample (input and compute) as a multiple of the others' median."""
    waiting: str = "lockstep"
    """Which workers wait: all (``lockstep``), those too far ahead (``bounded``), or ``nobody``."""
    machine: str | None = None
    cause: str | None = None
    """Why it is slow, as one of ``causes.CAUSES``; null if the figures do not show it."""
    evidence: list[str] = []
    """The figures that show the cause."""
    remedy: str | None = None
    gain: float | None = None
    """By which part the run would be faster without the cause: 0.5 for one and a half times."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """How long the workers of a machine waited for those of another one, added up."""

    waiting: str
    late: str
    seconds: float


MOST_WAITS = 64


def find_straggler(phases: Sequence[PhaseSteps], balanced: float | None = None) -> Straggler | None:
    """The clear straggler, or ``None``; from the moment ``balanced`` on shares were unequal."""
    warm = _warm(phases)
    paces, means = _paces(phases, balanced, warm)
    if len(paces) < 2 or warm == math.inf:
        return None
    slowest = max(paces, key=lambda rank: paces[rank])
    times_last: Counter[int] = Counter()
    lost = dict.fromkeys(paces, 0.0)
    """Seconds that others waited, by the rank they waited for."""
    for phase in phases:
        for row in meetings(phase):
            if all(step.began >= warm for step in row):
                rank, seconds = waits(row)
                times_last[rank] += 1
                lost[rank] = lost.get(rank, 0.0) + sum(seconds.values())
        if phase.waiting is WaitRule.BOUNDED:
            steps = (step for own in phase.steps for step in own if step.began >= warm)
            lost[slowest] += sum(step.wait for step in steps if step.rank != slowest)
    met = times_last.total()
    rules = {phase.waiting for phase in phases if any(phase.steps)}
    strictest = (WaitRule.LOCKSTEP, WaitRule.BOUNDED, WaitRule.NOBODY)
    waiting = next((rule for rule in strictest if rule in rules), WaitRule.NOBODY).value
    last = max(sorted(times_last), key=lambda rank: times_last[rank], default=slowest)
    for rank in dict.fromkeys((last, slowest)):
        # The others' time, in steps and rounds.
        rows = (rows for phase in phases for rows in (*phase.steps, *phase.rounds))
        spent = sum(
            row.seconds for part in rows for row in part if row.rank != rank and row.began >= warm
        )
        others = _without(paces, rank)
        found = Straggler(
            rank=rank,
            share=times_last[rank] / met if met else 0.0,
            steps=met,
            seconds=lost[rank],
            cost=lost[rank] / spent if spent > 0.0 else 0.0,
            slower=paces[rank] / median(others) if rank in paces and others else None,
            waiting=waiting,
        )
        # Equal workers are sometimes last by chance: of two workers, each is last half of the time.
        # One that is slow for a part of the run is last less often, but costs most of the time.
        part = found.seconds / (sum(lost.values()) or 1.0)
        came_last = found.share >= max(0.5, LAST / len(paces)) or not met
        often = found.share >= OFTEN / len(paces)  # a single pause makes no straggler
        came_last = came_last or (often and part >= max(MOST_OF_COST, OF_TWO / len(paces)))
        costly = came_last and found.cost >= SHARE_OF_COST
        slow = rank == slowest and (found.slower or 0.0) >= SLOWER
        if costly or (slow and means[rank] >= ALSO_ON_AVERAGE * median(_without(means, rank))):
            return found
    return None


def _warm(phases: Sequence[PhaseSteps]) -> float:
    """The end of the first steps; infinity if too few steps follow."""
    counts = zip(*(phase.steps for phase in phases), strict=False)
    busiest = max(([s for part in own for s in part] for own in counts), key=len, default=[])
    return busiest[WARM_UP].began if len(busiest) >= WARM_UP + MEASURED else math.inf


def _without(paces: Mapping[int, float], rank: int) -> list[float]:
    return [pace for other, pace in paces.items() if other != rank]


def _paces(
    phases: Sequence[PhaseSteps], balanced: float | None, warm: float
) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of input and compute per sample of a typical step, and on average, by rank.

    Steps with equal shares are used if there are any: with few samples, fixed costs count most.
    """
    found: dict[int, list[tuple[WorkerStep, float]]] = defaultdict(list)
    for step in (step for phase in phases for steps in phase.steps for step in steps):
        if step.samples:
            found[step.rank].append((step, (step.input + step.compute) / step.samples))
    if balanced is None:
        balanced = math.inf
    kept: dict[int, list[float]] = {}
    for begun, ended in ((warm, balanced), (0.0, balanced), (warm, math.inf)):
        kept = {
            rank: [pace for s, pace in rows if s.began >= begun and s.ended <= ended]
            for rank, rows in found.items()
        }
        if all(len(paces) >= ENOUGH_STEPS for paces in kept.values()):
            break
    paces = {rank: p for rank in sorted(kept) if kept[rank] and (p := median(kept[rank])) > 0.0}
    return paces, {rank: fmean(kept[rank]) for rank in paces}


def meetings(phase: PhaseSteps) -> Iterator[tuple[WorkerStep, ...]]:
    """What the workers of a team did together in lockstep, one row of each.

    Counted from the start of each epoch: after asynchronous phases the ranks' numbers differ, and
    a rank without samples of a short last batch has no row of it.
    """
    together = phase.rounds if any(phase.rounds) else phase.steps
    for team in sorted(set(phase.teams)) if phase.waiting is WaitRule.LOCKSTEP else ():
        members = [rows for rows, own in zip(together, phase.teams, strict=True) if own == team]
        if len(members) > 1:
            parts = [_by_epoch(rows) for rows in members]
            for epoch in sorted(set().union(*parts)):
                yield from zip(*(part.get(epoch, []) for part in parts), strict=False)


def waits(row: Sequence[WorkerStep]) -> tuple[int, dict[int, float]]:
    """The rank that came last to a meeting, and the seconds that each waited for it.

    They wait from the moment when their own gradient is ready, but only while they do nothing else:
    they may send it meanwhile.
    """
    late = max(row, key=lambda step: step.ready)
    return late.rank, {s.rank: min(late.ready - s.ready, s.wait + s.settle) for s in row}


def find_waits(phases: Sequence[PhaseSteps], machines: Mapping[int, str]) -> list[Wait]:
    """Who waited for whom, longest first; machines, or the workers of a single one."""
    several = len(set(machines.values())) > 1
    names = {rank: name if several else f"worker {rank}" for rank, name in machines.items()}
    found: dict[tuple[str, str], float] = defaultdict(float)
    for phase in phases:
        for row in meetings(phase):
            late, seconds = waits(row)
            for rank, waited in seconds.items():
                found[names.get(rank, ""), names.get(late, "")] += waited
    longest = sorted(found.items(), key=lambda pair: -pair[1])
    told = [Wait(waiting=a, late=b, seconds=s) for (a, b), s in longest if a != b and s > 0.0]
    return told[:MOST_WAITS]


def _by_epoch(rows: Sequence[WorkerStep]) -> dict[int, list[WorkerStep]]:
    found: dict[int, list[WorkerStep]] = defaultdict(list)
    for row in rows:
        found[row.epoch].append(row)
    return dict(found)
