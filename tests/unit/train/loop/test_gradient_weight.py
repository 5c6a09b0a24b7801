"""How much the gradients in hand count, for several optimizers."""

from __future__ import annotations

import torch

from phalanx.rules.ledger import lease_of
from phalanx.sync.arena.clock import MonotonicClock
from phalanx.train.engine.engine import Engine
from phalanx.train.loop.gradient_weight import NEXT_TO_NOTHING, GradientWeight


class _Two(Engine):
    parties = 2  # type: ignore[assignment]


def test_only_an_optimizer_that_has_gradients_counts_next_to_nothing() -> None:
    """A batch of which this worker has no part, while one optimizer still waits for its step."""
    waiting, stepped = (torch.zeros(1, requires_grad=True) for _ in range(2))
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in (waiting, stepped)]
    weighing, engine = GradientWeight(optimizers), _Two([], optimizers, MonotonicClock())
    weighing.new_batch(lease_of(0, 0, 2, 4, 4), 4, engine)
    waiting.grad = torch.ones(1)
    weighing.new_batch(lease_of(4, 1, 1, 1, 4), 4, engine)
    assert weighing.scales == [NEXT_TO_NOTHING, 0.0]
    assert float(waiting.grad) * NEXT_TO_NOTHING == 1.0
