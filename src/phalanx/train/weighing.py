"""How much a worker's gradient counts: by its samples since the last step.

Losses are means over a batch, so each batch's gradient is weighted by its share of the global
batch, and the agreed gradient is divided by the sum of all workers' weights. That makes unequal
shares, uneven last batches and accumulation exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Weighing:
    """The weight of the gradients in hand."""

    share: float = 0.0
    """Of the batch in hand."""
    pending: int = 0
    """Batches since the last step, also those this worker had no part in."""
    weight: float = 0.0
    _counted: bool = False
    _stepped: float = 0.0
    _seeds: dict[tuple[float, torch.dtype, torch.device], Tensor] = field(default_factory=dict)

    def new_batch(self, share: float) -> None:
        self.share, self._counted, self._stepped = share, False, 0.0
        self.pending += 1

    def backward(self, error: Tensor) -> None:
        """Several losses of one batch add up, as they do in torch, and weigh once."""
        if not self._counted:
            self.weight += self.share
            self._counted = True
        error.backward(self._seed(error))

    def _seed(self, error: Tensor) -> Tensor | None:
        """Where back-propagation begins: cheaper than multiplying the loss."""
        if self.share == 1.0:
            return None
        key = (self.share, error.dtype, error.device)
        if key not in self._seeds:
            if len(self._seeds) > 64:
                self._seeds.clear()
            self._seeds[key] = torch.full_like(error.detach(), self.share)
        return self._seeds[key]

    def settle(self, parameters: Iterable[Tensor], wanted: float | None) -> float:
        """The weight of the step that begins now; gradients that do not fit it are scaled."""
        # A second optimizer may step on the same passes: its gradients have the same weight.
        has = self.weight or self._stepped
        weight = wanted if wanted is not None else (has or self.share)
        factor = weight / (has or 1.0)  # without run.backward a gradient is a plain mean
        if factor != 1.0:
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                torch._foreach_mul_(gradients, factor)
        return weight

    def export_state(self, parameters: Iterable[Tensor]) -> dict[str, Tensor]:
        """Gradients that wait for their step, and what they weigh."""
        if not self.pending:
            return {}
        gradients = {
            f"pending.{i}": p.grad.detach().cpu().clone()
            for i, p in enumerate(parameters)
            if p.grad is not None
        }
        weighed = torch.tensor([self.pending, self.weight], dtype=torch.float64)
        return {"pending": weighed, **gradients}

    def import_state(self, parameters: Iterable[Tensor], state: Mapping[str, Tensor]) -> None:
        if "pending" not in state:
            return
        self.pending, self.weight = int(state["pending"][0]), float(state["pending"][1])
        for i, parameter in enumerate(parameters):
            if (gradient := state.get(f"pending.{i}")) is not None:
                parameter.grad = gradient.clone().to(parameter.device)

    def stepped(self, weight: float) -> None:
        self._stepped, self.weight, self._counted, self.pending = weight, 0.0, False, 0
