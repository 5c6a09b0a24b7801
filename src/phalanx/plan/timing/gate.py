"""The gate of the parameter store in virtual time: the rules of a training, over counted clocks."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from phalanx.rules.admission import AWAY, Clocks, Free, Rule, Stale

FEW = 48
"""Workers up to which a rule sees all clocks."""


class Gate:
    """What ``sync.store.admission_gate`` is in a training.

    All rules look at the others' clocks through the lowest one only, so those who wait are asked
    again when that rises.
    """

    def __init__(self, rule: Rule, workers: int) -> None:
        self._rule, self.bound = rule, -1
        """How far ahead any worker may be; -1 where the rule has to be asked."""
        if isinstance(rule, Free | Stale):
            self.bound = rule.bound if isinstance(rule, Stale) else AWAY
        self.steps, self._times, self._intervals = [0] * workers, [0.0] * workers, [0.0] * workers
        self._grants, self._began, self.lowest = [0] * workers, [0.0] * workers, [0]
        self._clocks = Clocks(self.steps, self._times, self._intervals, self._grants, 0)
        self._pace = np.zeros((3, workers))
        """Steps, when the next push is expected, and how long a step takes."""
        self.at = defaultdict(int, {0: workers})
        """How many workers have done so many steps."""
        self._waiting: dict[int, float] = {}

    def pushed(self, rank: int, now: float) -> list[tuple[int, float]]:
        """Who goes on now, and since when it has waited."""
        step = self.steps[rank]
        self.steps[rank] = step + 1
        self.at[step + 1] += 1
        rose = self._leave_level(step)
        if self.bound < 0:
            self._decide(rank, now)
        admitted = []
        if self._admits(rank):
            self._began[rank] = now
            admitted.append((rank, now))
        else:
            self._waiting[rank] = now
        if rose and self._waiting:
            admitted += self._released(now)
        return admitted

    def leave(self, rank: int) -> None:
        """``rank``, which was admitted, rests for ever.

        That releases no one: those who wait are one step too far ahead, so the push that let this
        worker go has let them go too.
        """
        step, self.steps[rank] = self.steps[rank], AWAY
        self._pace[0, rank] = AWAY
        self._leave_level(step)

    def _decide(self, rank: int, now: float) -> None:
        took = now - self._began[rank]
        self._times[rank], self._intervals[rank] = now, took
        self._pace[:, rank] = self.steps[rank], now + took, took
        place, clocks = rank, self._clocks
        if len(self.steps) > FEW and not self._rule.admits(rank, clocks):
            place, clocks = self._without_the_early(rank, now)
        self._grants[rank] = self._rule.decide(place, clocks, now)

    def _without_the_early(self, rank: int, now: float) -> tuple[int, Clocks]:
        """Clocks that give the same decision as all of them, and the place of ``rank`` in them.

        A rule predicts when the last worker will have done so many steps. Of those with equal
        clocks, one that is expected earlier than another and steps faster is never the last.
        """
        behind = np.flatnonzero(self._pace[0] < self.steps[rank])
        levels, expected, took = self._pace[:, behind]
        levels -= self.lowest[0]
        order = np.lexsort((-took, -np.maximum(expected, now), levels))
        slowest = np.maximum.accumulate((took + levels * 2 * took.max(initial=0.0))[order])
        kept = np.diff(slowest, prepend=-1.0) > 0
        if took.min(initial=1.0) <= 0.0:  # with an unknown pace, nothing is predicted
            return rank, self._clocks
        chosen = [rank, *behind[order[kept]].tolist()]
        known = (self.steps, self._times, self._intervals, self._grants)
        steps, times, intervals, grants = ([cells[i] for i in chosen] for cells in known)
        return 0, Clocks(steps, times, intervals, grants, self.lowest[0])

    def _admits(self, rank: int) -> bool:
        if self.bound < 0:
            return self._rule.admits(rank, self._clocks)
        return self.steps[rank] - self.lowest[0] <= self.bound

    def _leave_level(self, step: int) -> bool:
        """One worker's clock is not at ``step`` any more; whether the lowest one has risen."""
        self.at[step] -= 1
        if self.at[step]:
            return False
        del self.at[step]
        if step != self.lowest[0]:
            return False
        self.lowest[0] = self._clocks.floor = min(self.at, default=AWAY)
        return True

    def _released(self, now: float) -> list[tuple[int, float]]:
        ready = [rank for rank in sorted(self._waiting) if self._admits(rank)]
        for rank in ready:
            self._began[rank] = now
        return [(rank, self._waiting.pop(rank)) for rank in ready]
