"""The base of strategies whose workers step as a team."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Protocol

import torch

from phalanx.sync.reduce.reducer import Reducer
from phalanx.sync.state.gradients import get_grad, set_grad
from phalanx.sync.strategies.shared_strategy import SharedStrategy
from phalanx.sync.strategy import StrategyContext, Timing


class GradientAgreement:
    """Gives a script the gradient that one process would have: a reduce-scatter as in a step, then
    every member copies the whole sum. No codec is used."""

    def __init__(self, context: StrategyContext) -> None:
        encoding = dataclasses.replace(context.encoding, codec=None)
        plain = dataclasses.replace(context, encoding=encoding, tag=f"{context.tag}.agreed")
        self._reducer, self._replica = Reducer(plain), context.replica
        self._team = context.team

    @torch.no_grad()
    def share(self, weight: float) -> None:
        """Give every member the agreed gradient. Collective among the team."""
        reducer = self._reducer
        reducer.offer(weight)
        self._team.barrier()
        masks = reducer.reduce(checked=False)  # a script sees the gradients as they are
        reducer.take_time()
        if not reducer.apart:
            reducer.show_reduced()
        self._team.barrier()
        for layout, parameters, whole, mask in zip(
            self._replica.layouts, self._replica.parameters, reducer.sums, masks, strict=True
        ):
            for i, (place, parameter) in enumerate(zip(layout.places, parameters, strict=True)):
                if mask is None or mask[i]:
                    gradient, value = get_grad(parameter), place.view(whole)
                    if gradient is None or gradient.requires_grad:
                        set_grad(parameter, value.clone().to(parameter.device))
                    else:
                        gradient.copy_(value)
        self._team.barrier()  # until the rows are free again


class Offers(Protocol):
    """The interface to offer this worker's gradient to its team."""

    bytes_sent: int
    """Bytes of the step that were sent to others so far."""

    def offer(self, weight: float, clip: float | None = None) -> None: ...


class TeamStrategy(SharedStrategy):
    """Takes steps in three parts: offer the gradient, meet the team, follow."""

    offers: Offers

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._context = context
        self._agreement: GradientAgreement | None = None

    @abstractmethod
    def follow(self) -> Timing:
        """Take the step for which the team has met, with the gradients that were offered."""

    def distrust(self) -> None:
        """Note that others write to the rows of gradients before the next step."""

    def share_gradients(self, weight: float) -> None:
        self.distrust()
        if self._agreement is None:
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
