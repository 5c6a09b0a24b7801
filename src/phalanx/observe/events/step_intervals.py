"""What each rank did between one synchronisation of the workers and the next.

Only durations on one machine's clock are used, so the machines' clocks need not agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from phalanx.observe.events.strategy_phases import PhaseSteps, WaitRule
from phalanx.observe.events.timeline import WorkerStep

WARM_UP = 3
"""The first steps of a rank, which load code and fill caches."""
MOST = 96
"""The most laps that are kept of a rank, spread over the whole time."""
_ENOUGH, _DIFFERENT = 3, 1.5
"""The least steps of one size for a median; the least ratio of sizes that shows fixed costs."""


_LONGEST = 1e6


class Lap(NamedTuple):
    """A step; for workers that train independently, a round with the steps before it."""

    epoch: int
    samples: int
    busy: float
    """Seconds until the worker was ready to synchronise."""
    wait: float
    """Seconds that the worker waited for the others."""
    update: float
    seconds: float
    input: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True)
class RankWindow:
    """Selected laps of one rank, and the seconds of its work on n samples: ``fixed + each * n``."""

    laps: tuple[Lap, ...]
    fixed: float = 0.0
    each: float = 0.0
    trained: float = 0.0
    """The seconds of all laps, including those that were not selected."""

    def busy(self, samples: float) -> float:
        return self.fixed + self.each * samples

    def cut(self, part: int, parts: int) -> RankWindow:
        """Return one of several parts of equal length."""
        count = len(self.laps)
        begin, end = part * count // parts, (part + 1) * count // parts
        return RankWindow(self.laps[begin:end], self.fixed, self.each)


def windows_of(phase: PhaseSteps, since: int = 0, most: int = MOST) -> dict[int, RankWindow]:
    """Return the laps of each rank after the warm-up, from step ``since`` on if shares changed. If
    workers wait for each other, their laps at the same index belong to the same synchronisation."""
    laps: dict[int, list[Lap]] = {}
    late: dict[int, list[Lap]] = {}
    for steps, rounds in zip(phase.steps, phase.rounds or [[] for _ in phase.steps], strict=True):
        if not steps:
            continue
        rank, warm = steps[0].rank, steps[WARM_UP:]
        laps[rank] = _laps(warm, rounds)
        late[rank] = _laps([s for s in warm if s.number >= since], rounds)
    costs = {rank: _costs(found) for rank, found in laps.items()}
    if phase.waiting is WaitRule.LOCKSTEP:
        late = _side_by_side(late, _teams(phase))
    return {
        rank: RankWindow(
            tuple(late[rank][:: -(-len(late[rank]) // most) or 1]),
            *costs[rank],
            sum(lap.seconds for lap in late[rank]),
        )
        for rank in sorted(laps)
    }


def _teams(phase: PhaseSteps) -> dict[int, int]:
    teams = phase.teams or (0,) * len(phase.steps)
    return {s[0].rank: team for s, team in zip(phase.steps, teams, strict=True) if s}


def _laps(steps: Sequence[WorkerStep], rounds: Sequence[WorkerStep]) -> list[Lap]:
    if not rounds:
        pairs = zip(steps, [None, *steps], strict=False)  # each with the one before it
        return [lap for step, last in pairs if _is_sane(lap := _step(step, last))]
    found, at = [], 0
    for met in rounds:
        before = []
        while at < len(steps) and steps[at].began < met.began:
            before.append(steps[at])
            at += 1
        if before:
            found.append(_apart(before, met))
    return [lap for lap in found if _is_sane(lap)]


def _is_sane(lap: Lap) -> bool:
    """Whether a lap has samples and plausible figures: a machine may report anything."""
    parts = (lap.busy, lap.wait, lap.update)
    return lap.samples > 0 and 0.0 < lap.seconds < _LONGEST and min(parts) >= 0.0


def _step(step: WorkerStep, before: WorkerStep | None) -> Lap:
    waited, script = step.wait + step.settle, between(before, step)
    busy, whole = script + step.input + step.compute, script + step.seconds
    return Lap(step.epoch, step.samples, busy, waited, step.update, whole, step.input, step.ended)


def between(before: WorkerStep | None, step: WorkerStep) -> float:
    """Return the seconds of the script's own work since its previous step, which count as busy."""
    if before is None or (before.epoch, before.number + 1) != (step.epoch, step.number):
        return 0.0
    return max(0.0, step.began - before.ended)


def _apart(steps: Sequence[WorkerStep], met: WorkerStep) -> Lap:
    """Make the lap of a worker that trains independently: its updates are its own work too."""
    busy = sum(step.seconds for step in steps)
    samples, read = sum(step.samples for step in steps), sum(step.input for step in steps)
    waited, whole = met.wait + met.settle, busy + met.seconds
    return Lap(met.epoch, samples, busy, waited, met.update, whole, read, met.ended)


def _side_by_side(
    laps: Mapping[int, Sequence[Lap]], teams: Mapping[int, int]
) -> dict[int, list[Lap]]:
    """Align laps from each epoch's start: a rank without samples of a short last batch has none."""
    found: dict[int, list[Lap]] = {rank: [] for rank in laps}
    for team in sorted(set(teams.values())):
        members = [rank for rank in laps if teams[rank] == team]
        for epoch in sorted({lap.epoch for rank in members for lap in laps[rank]}):
            parts = [[lap for lap in laps[rank] if lap.epoch == epoch] for rank in members]
            length = min(map(len, parts))
            for rank, part in zip(members, parts, strict=True):
                found[rank] += part[:length]
    return found


def _costs(laps: Sequence[Lap]) -> tuple[float, float]:
    """Return the fixed seconds of a lap, and the seconds per sample.

    Laps of similar sizes cannot separate the two: then all seconds count as per sample.
    """
    sizes: dict[int, list[float]] = defaultdict(list)
    for lap in laps:
        sizes[lap.samples].append(lap.busy)
    typical = {n: median(busy) for n, busy in sizes.items() if n and len(busy) >= _ENOUGH}
    if not typical:
        paces = [lap.busy / lap.samples for lap in laps if lap.samples]
        return 0.0, median(paces) if paces else 0.0
    low, high = min(typical), max(typical)
    if high < _DIFFERENT * low:
        return 0.0, median(lap.busy / lap.samples for lap in laps if lap.samples)
    each = max(0.0, (typical[high] - typical[low]) / (high - low))
    each = min(each, typical[high] / high)
    return max(0.0, typical[high] - each * high), each
