"""The gate of the parameter store in virtual time: the rules of a training, over counted clocks."""

from __future__ import annotations

from collections import defaultdict

from phalanx.rules.admission import AWAY, Clocks, Free, Rule, Stale


class Gate:
    """What ``sync.store.admission_gate`` is in a training.

    All rules look at the others' clocks through the lowest one only, so those who wait are asked
    again when that rises.
    """

    def __init__(self, rule: Rule, workers: int) -> None:
        self._rule = rule
        self.bound = (
            rule.bound if isinstance(rule, Stale) else AWAY if isinstance(rule, Free) else -1
        )
        """How far ahead any worker may be; -1 where the rule has to be asked."""
        self.steps, self._times, self._intervals = [0] * workers, [0.0] * workers, [0.0] * workers
        self._grants, self._began, self.lowest = [0] * workers, [0.0] * workers, [0]
        self.at = defaultdict(int, {0: workers})
        """How many workers have done so many steps."""
        self._waiting: dict[int, float] = {}
        self._clocks = Clocks(self.steps, self._times, self._intervals, self._grants, 0)

    def pushed(self, rank: int, now: float) -> list[tuple[int, float]]:
        """Who goes on now, and since when it has waited."""
        step = self.steps[rank]
        self.steps[rank] = step + 1
        self.at[step + 1] += 1
        rose = self._leave_level(step)
        if self.bound < 0:
            self._times[rank], self._intervals[rank] = now, now - self._began[rank]
            self._grants[rank] = self._rule.decide(rank, self._clocks, now)
        admitted = []
        if self._admits(rank):
            self._began[rank] = now
            admitted.append((rank, now))
        else:
            self._waiting[rank] = now
        if rose and self._waiting:
            admitted += self._released(now)
        return admitted

    def leave(self, rank: int, now: float) -> list[tuple[int, float]]:
        """``rank`` rests for ever; returns who goes on because of it."""
        step, self.steps[rank] = self.steps[rank], AWAY
        return self._released(now) if self._leave_level(step) else []

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
