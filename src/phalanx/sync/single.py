"""One worker: the user's own optimizer, and no communication at all."""

from __future__ import annotations

import torch

from phalanx.sync.clock import Clock
from phalanx.sync.strategy import Timing


class Single:
    """What every strategy becomes when there is only one worker."""

    def __init__(self, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
        self._optimizer, self._clock = optimizer, clock
        self._parameters = [p for g in optimizer.param_groups for p in g["params"]]

    def exchange(self, weight: float, clip: float | None = None) -> Timing:
        ready = self._clock.now()
        if weight not in (0.0, 1.0):
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            torch._foreach_mul_(gradients, 1.0 / weight)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, clip)
        self._optimizer.step()
        for parameter in self._parameters:  # zero_grad, without its wrappers
            parameter.grad = None
        return Timing(update=self._clock.now() - ready)
