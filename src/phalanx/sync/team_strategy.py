"""What strategies have in common whose workers step as a team."""

from __future__ import annotations

from phalanx.sync.shared_strategy import SharedStrategy
from phalanx.sync.strategy import StrategyContext, Timing


class TeamStrategy(SharedStrategy):
    """A step: offer the gradient, meet the team, follow. A subclass adds ``offer`` (which sets
    ``_bytes``, what goes to others) and ``follow``."""

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._bytes = 0

    def exchange(self, weight: float, clip: float | None = None) -> Timing:
        ready = self._clock.now()
        self.offer(weight, clip)
        sent = self._clock.now()
        self._team.meet()
        met = self._clock.now()
        timing = self.follow()
        timing.send, timing.bytes_sent = sent - ready, self._bytes
        timing.wait += met - sent
        return timing
