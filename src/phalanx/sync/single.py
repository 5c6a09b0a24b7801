"""One worker: the user's own optimizer, and no communication at all."""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.sync.clock import Clock
from phalanx.sync.shared_state import State
from phalanx.sync.strategy import Timing


class Single:
    """What every strategy becomes when there is only one worker."""

    def __init__(self, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
        self._optimizer, self._clock = optimizer, clock
        self._parameters = [p for g in optimizer.param_groups for p in g["params"]]

    def begin(self) -> None:
        pass

    def bind(self) -> None:
        pass

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

    def offer(self, weight: float, clip: float | None = None) -> None:
        pass

    def follow(self) -> Timing:
        return Timing()

    def refresh(self) -> None:
        pass

    def drain(self) -> None:
        pass

    def export_state(self) -> State:
        state: State = {}
        for i, parameter in enumerate(self._parameters):
            state[f"parameters.{i}"] = parameter.detach()
            for name, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    state[f"{name}.{i}"] = value
        return state

    def import_state(self, state: State) -> None:
        for name, target in self.export_state().items():
            target.copy_(state[name])
