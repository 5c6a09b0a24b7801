"""Simulates the gate of the parameter store in virtual time, with the same rules as a training."""

from __future__ import annotations

from phalanx.policies.admission import AWAY, Clocks, Rule


class Gate:
    """Stands in for ``sync.arena.admission_gate.AdmissionGate``.

    Of the other workers' clocks, a rule uses only the lowest one. So when that rises, the gate
    tests all waiting workers again.
    """

    def __init__(self, rule: Rule, workers: int) -> None:
        self._rule, self.steps, self._grants = rule, [0] * workers, [0] * workers
        self._began, self._times = [0.0] * workers, [0.0] * workers
        self._intervals = [0.0] * workers
        self._clocks = Clocks(self.steps, self._times, self._intervals, self._grants, 0)
        self._lowest = workers
        """How many have the lowest clock."""
        self._waiting: dict[int, float] = {}

    def pushed(self, rank: int, now: float) -> list[tuple[int, float]]:
        """Workers that go on now, and since when each has waited."""
        step = self.steps[rank]
        self.steps[rank] = step + 1
        rose = self._leave_level(step)
        self._times[rank], self._intervals[rank] = now, now - self._began[rank]
        self._grants[rank] = self._rule.decide(rank, self._clocks, now)
        self._waiting[rank] = now
        admitted = self._released([rank], now)
        if rose and self._waiting:
            admitted += self._released(sorted(self._waiting), now)
        return admitted

    def leave(self, rank: int) -> None:
        """Take out ``rank``, which has been admitted and makes no more steps.

        No waiting worker has to be tested: each is one step too far ahead, and if ``rank`` was the
        slowest, its last push has raised the lowest clock by that step.
        """
        step = self.steps[rank]
        self.steps[rank] = AWAY
        self._leave_level(step)

    def _leave_level(self, step: int) -> bool:
        """Note that a worker's clock left ``step``; return whether the lowest clock has risen."""
        self._lowest -= step == self._clocks.floor
        if self._lowest:
            return False
        self._clocks.floor = min(self.steps)
        self._lowest = self.steps.count(self._clocks.floor)
        return True

    def _released(self, ranks: list[int], now: float) -> list[tuple[int, float]]:
        ready = [rank for rank in ranks if self._rule.admits(rank, self._clocks)]
        for rank in ready:
            self._began[rank] = now
        return [(rank, self._waiting.pop(rank)) for rank in ready]
