"""What strategies have in common whose workers step as a team."""

from __future__ import annotations

from phalanx.sync.shared_strategy import SharedStrategy
from phalanx.sync.strategy import Timing


class TeamStrategy(SharedStrategy):
    """A step: offer the gradient, meet the team, follow. A subclass adds ``offer``, ``follow`` and
    ``bytes_sent``, what has gone to others by then."""

    @property
    def bytes_sent(self) -> int:
        return 0

    def start(self) -> None:
        """The step that was offered for will be taken."""

    def exchange(self, weight: float, clip: float | None = None) -> Timing:
        ready = self._clock.now()
        self.offer(weight, clip)
        self.start()
        sent = self._clock.now()
        self._team.meet()
        met = self._clock.now()
        timing = self.follow()
        timing.send, timing.bytes_sent = sent - ready, self.bytes_sent
        timing.wait += met - sent
        return timing
