"""What strategies have in common whose workers step as a team."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

from phalanx.sync.strategies.shared_strategy import SharedStrategy
from phalanx.sync.strategy import StrategyContext, Timing

if TYPE_CHECKING:
    from phalanx.sync.reduce.gradient_agreement import GradientAgreement


class Offers(Protocol):
    """Shows the team this worker's gradient."""

    bytes_sent: int
    """What of the step has gone to others by now."""

    def offer(self, weight: float, clip: float | None = None) -> None: ...


class TeamStrategy(SharedStrategy):
    """A step: offer the gradient, meet the team, follow."""

    offers: Offers

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._context = context
        self._agreement: GradientAgreement | None = None

    @abstractmethod
    def follow(self) -> Timing:
        """The step that the team has met for, with what was offered."""

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
        self.offers.offer(weight, clip)
        sent = self._clock.now()
        self._team.meet()
        met = self._clock.now()
        timing = self.follow()
        timing.send, timing.bytes_sent = sent - ready, self.offers.bytes_sent
        timing.wait += met - sent
        return timing
