"""How much the gradients in hand count, for several optimizers."""

from __future__ import annotations

import torch

from phalanx.policies.sample_assignment import lease_of
from phalanx.sync.arena.clock import MonotonicClock
from phalanx.train.engine.engine import Engine
from phalanx.train.step.gradient_weight import NEXT_TO_NOTHING, GradientWeight


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


def test_gradients_that_a_checkpoint_brings_back_are_scaled_as_those_to_come() -> None:
    """Also if the step comes next, without another backward pass."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    saved = GradientWeight([optimizer])
    saved.new_batch(lease_of(0, 0, 4, 4, 4), 4, Engine([], [optimizer], MonotonicClock()))
    weight.grad = torch.full((1,), 3.0)
    state = saved.export_state()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    resumed = GradientWeight([optimizer], scaler=scaler)
    resumed.import_state(state)
    assert float(weight.grad) == 24.0
    assert not resumed.loss_scale.is_missing
    assert resumed.of_step(0) == (1 / 8, 1.0)


def test_gradients_that_were_agreed_on_are_saved_as_they_are() -> None:
    """They are not scaled any more."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")
    weighing = GradientWeight([optimizer], scaler=scaler)
    weighing.new_batch(lease_of(0, 0, 4, 4, 4), 4, Engine([], [optimizer], MonotonicClock()))
    weight.grad = torch.full((1,), 3.0)
    weighing.agreed.add(0)
    assert float(weighing.export_state()["pending.0"]) == 3.0
