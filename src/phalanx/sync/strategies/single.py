"""One worker: the user's own optimizer, and no communication at all."""

from __future__ import annotations

import torch

from phalanx.sync.arena.clock import Clock
from phalanx.sync.reduce.finite import are_finite
from phalanx.sync.state.gradients import get_grad, set_grad
from phalanx.sync.strategies.strategy import Timing


class Single:
    """What every strategy becomes when there is only one worker."""

    def __init__(self, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
        self._optimizer, self._clock = optimizer, clock

    def exchange(self, scale: float, clip: float | None = None) -> Timing:
        """Gradients are multiplied by ``scale`` first."""
        ready = self._clock.now()
        parameters = [p for g in self._optimizer.param_groups for p in g["params"]]
        gradients = [g for p in parameters if (g := get_grad(p)) is not None]
        finite = are_finite(gradients)
        if scale != 1.0 and finite:
            torch._foreach_mul_(gradients, scale)
        if clip is not None and finite:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        if finite:
            self._optimizer.step()
        for parameter in parameters:  # zero_grad, without its wrappers
            set_grad(parameter, None)
        return Timing(update=self._clock.now() - ready, refused=None if finite else (0,))
