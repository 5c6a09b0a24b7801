"""The gate of the parameter store in virtual time: the rules of a training, over counted clocks."""

from __future__ import annotations

from phalanx.policies.admission import AWAY, Clocks, Rule


class Gate:
    """What ``sync.store.admission_gate`` is in a training.

    All rules look at the others' clocks through the lowest one only, so those who wait are asked
    again when that rises.
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
        """``rank``, which was admitted, rests for ever.

        That releases no one: those who wait are one step too far ahead, so the push that let this
        worker go has let them go too.
        """
        step = self.steps[rank]
        self.steps[rank] = AWAY
        self._leave_level(step)

    def _leave_level(self, step: int) -> bool:
        """One worker's clock is not at ``step`` any more; whether the lowest one has risen."""
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
