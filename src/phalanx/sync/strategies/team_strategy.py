"""What strategies have in common whose workers step as a team."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from phalanx.sync.strategies.shared_strategy import SharedStrategy
from phalanx.sync.strategy import StrategyContext, Timing

if TYPE_CHECKING:
    from phalanx.sync.reduce.gradient_agreement import GradientAgreement


class TeamStrategy(SharedStrategy):
    """A step: offer the gradient, meet the team, follow. A subclass may add ``bytes_sent``, what
    has gone to others by then."""

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._context = context
        self._agreement: GradientAgreement | None = None

    @property
    def bytes_sent(self) -> int:
        return 0

    @abstractmethod
    def offer(self, weight: float, clip: float | None = None) -> None:
        """Show the team this worker's gradient."""

    @abstractmethod
    def follow(self) -> Timing:
        """The step that the team has met for, with what was offered."""

    def start(self) -> None:
        """The step that was offered for will be taken."""

    def distrust(self) -> None:
        """Others write to the rows of gradients before the next step."""

    def share_gradients(self, weight: float) -> None:
        self.distrust()
        if self._agreement is None:
            from phalanx.sync.reduce.gradient_agreement import GradientAgreement

            self._agreement = GradientAgreement(self._context)
        self._agreement.share(weight)

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
