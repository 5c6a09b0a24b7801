"""DiLoCo: the mean movement of the workers is the gradient of an outer Nesterov step.

Douillard et al., "DiLoCo: Distributed low-communication training of language models" (2023):
outer learning rate 0.7, momentum 0.9; inner optimizers keep their own state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.sync.state.shared_state import State
from phalanx.sync.strategies.local_training import Local
from phalanx.sync.strategy import StrategyContext


class DiLoCo(Local):
    def __init__(
        self, context: StrategyContext, every: int = 50, rate: float = 0.7, momentum: float = 0.9
    ) -> None:
        super().__init__(context)
        self.every, self._rate, self._momentum = every, rate, momentum
        self._velocity = [
            self._host.region(f"{context.tag}.velocity.{i}", n.size, n.dtype)
            for i, n in enumerate(self._replica.layouts)
        ]

    def _move(self, layout: int, parameters: Tensor, mean: Tensor) -> None:
        bounds = self._replica.layouts[layout].bounds(self._host.rank)
        velocity = self._velocity[layout][slice(*bounds)]
        torch.add(mean, velocity, alpha=self._momentum, out=velocity)
        parameters.add_(mean, alpha=self._rate)
        parameters.add_(velocity, alpha=self._rate * self._momentum)

    def export_state(self) -> State:
        outer = {f"velocity.{i}": velocity for i, velocity in enumerate(self._velocity)}
        return super().export_state() | outer

    def import_state(self, state: State) -> None:
        if self._host.rank == 0:
            for i, velocity in enumerate(self._velocity):
                found = state.get(f"velocity.{i}")
                if found is None:
                    velocity.zero_()
                elif found.data_ptr() != velocity.data_ptr():
                    velocity.copy_(found)
        super().import_state(state)
