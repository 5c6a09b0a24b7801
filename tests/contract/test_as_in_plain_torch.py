"""Gradients read between a backward pass and a step as in plain torch, of one optimizer or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from devices import AWAY
from plain_compare import assert_near
from plain_scripts import CLASSES, linear
from plain_worlds import in_both_worlds
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.core.errors import PhalanxError

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")
WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])


def _gradient(model: Any) -> Tensor:
    assert model.weight.grad is not None
    return model.weight.grad.clone()  # type: ignore[no-any-return]


@WORKERS
@pytest.mark.parametrize("by", ["run.backward", "backward"])
def test_a_gradient_reads_as_that_of_one_process(tmp_path: Path, workers: int, by: str) -> None:
    """In every batch, also in the last one, which is uneven."""

    def loop(models: Any, batches: Any, backward: Any, step: Any, first: bool) -> list[Tensor]:
        seen = []
        for x, y in batches:
            loss = F.cross_entropy(models[0](x), y)
            backward(loss) if by == "run.backward" else loss.backward()
            seen.append(_gradient(models[0]))
            step(0)
        return seen

    ended, wanted = in_both_worlds(tmp_path, workers, lambda: [linear()], loop, lr=0.0)
    for seen in ended:
        for found, gradient in zip(seen, wanted, strict=True):
            assert_near(found, gradient, "gradient")


@pytest.mark.parametrize("workers", [2, 3])
def test_a_gradient_that_one_worker_alone_reads_is_right_or_refused(
    tmp_path: Path, workers: int
) -> None:
    def loop(models: Any, batches: Any, backward: Any, step: Any, first: bool) -> Any:
        seen = []
        for x, y in batches:
            backward(F.cross_entropy(models[0](x), y))
            if first:  # as for a figure in a log
                seen.append(float(_gradient(models[0]).norm()))
            step(0)
        return models[0].weight.detach().clone(), seen

    try:
        ended, (weight, norms) = in_both_worlds(tmp_path, workers, lambda: [linear()], loop, lr=0.1)
    except PhalanxError as error:
        assert error.remedy
        return
    assert ended[0][1] == pytest.approx(norms, rel=1e-10)
    for weights, _ in ended:
        assert_near(weights, weight, "weights")


@WORKERS
def test_each_of_two_optimizers_has_gradients_of_its_own(tmp_path: Path, workers: int) -> None:
    """One is clipped and stepped; the other is stepped later, on two batches' gradients."""

    def models() -> list[nn.Module]:
        one, two = linear(), nn.Linear(CLASSES, CLASSES).double()
        nn.init.eye_(two.weight)
        nn.init.zeros_(two.bias)
        return [one, two]

    def loop(models: Any, batches: Any, backward: Any, step: Any, first: bool) -> list[Tensor]:
        one, two = models
        for number, (x, y) in enumerate(batches):
            backward(F.cross_entropy(two(one(x)), y))
            nn.utils.clip_grad_norm_(one.parameters(), 0.1)
            step(0)
            if number % 2:
                step(1)
        return [p.detach().clone() for model in models for p in model.parameters()]

    ended, wanted = in_both_worlds(tmp_path, workers, models, loop, lr=0.1, momentum=0.5)
    for weights in ended:
        for found, value in zip(weights, wanted, strict=True):
            assert_near(found, value, "weights")
