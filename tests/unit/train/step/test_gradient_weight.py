"""How much the gradients in hand count, for several optimizers."""

from __future__ import annotations

import torch

from phalanx.policies.sample_assignment import lease_of
from phalanx.sync.arena.clock import MonotonicClock
from phalanx.train.engine.engine import Engine
from phalanx.train.step.gradient_weight import GradientWeight


def test_gradients_that_were_agreed_on_are_saved_as_they_are() -> None:
    """They are not scaled any more."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")
    weighing = GradientWeight([optimizer], scaler=scaler)
    weighing.new_batch(lease_of(0, 0, 4, 4, 4), 4, Engine([], [optimizer], MonotonicClock()))
    weight.grad = torch.full((1,), 3.0)
    weighing.agreed.add(0)
    assert float(weighing.export_state()["pending.0"]) == 3.0
