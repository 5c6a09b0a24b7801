"""The team's gradient for each of its members, without a step: for scripts that read it."""

from __future__ import annotations

import dataclasses

import torch

from phalanx.sync.reduce.reducer import Reducer
from phalanx.sync.state.gradients import get_grad, set_grad
from phalanx.sync.strategy import StrategyContext


class GradientAgreement:
    """A reduce-scatter as in a step, then every member copies the whole sum. No codec: what a
    script reads is what one process would have."""

    def __init__(self, context: StrategyContext) -> None:
        encoding = dataclasses.replace(context.encoding, codec=None)
        plain = dataclasses.replace(context, encoding=encoding, tag=f"{context.tag}.agreed")
        self._reducer, self._replica = Reducer(plain), context.replica
        self._team = context.team

    @torch.no_grad()
    def share(self, weight: float) -> None:
        """Collective among the team."""
        reducer = self._reducer
        reducer.offer(weight)
        self._team.barrier()
        masks = reducer.reduce(checked=False)  # a script sees what there is
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
        self._team.barrier()  # the rows are free again
