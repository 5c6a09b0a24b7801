"""What a script may do with its gradients, one thing at a time, as it is in plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from devices import AWAY
from plain_compare import assert_near
from plain_scripts import CLASSES, Script, data_of, linear
from plain_worlds import as_workers, first_pass
from torch import Tensor, nn
from torch.nn import functional as F

import phalanx
from phalanx.core.errors import PhalanxError

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")
WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])
SEVERAL = pytest.mark.parametrize("workers", [2, 3])


# -- reading gradients ----------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("by", ["run.backward", "backward"])
def test_a_gradient_reads_as_that_of_one_process(tmp_path: Path, workers: int, by: str) -> None:
    """In every batch, also in the last one, which is uneven."""
    script = Script()

    def work(rank: int) -> list[Tensor]:
        model, seen = linear(), []
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.0))
        for x, y in run.batches(data_of(script), batch=script.batch):
            loss = F.cross_entropy(model(x), y)
            run.backward(loss) if by == "run.backward" else loss.backward()
            assert model.weight.grad is not None
            seen.append(model.weight.grad.clone())
            run.step()
        run.finish()
        return seen

    wanted = []
    for x, y in first_pass(script):
        model = linear()
        F.cross_entropy(model(x), y).backward()
        wanted.append(model.weight.grad)
    for seen in as_workers(workers, tmp_path, work):
        for found, gradient in zip(seen, wanted, strict=True):
            assert gradient is not None
            assert_near(found, gradient, "gradient")


@SEVERAL
def test_a_gradient_that_one_worker_alone_reads_is_right_or_refused(
    tmp_path: Path, workers: int
) -> None:
    script = Script()

    def work(rank: int) -> tuple[Tensor, list[float]]:
        model, seen = linear(), []
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in run.batches(data_of(script), batch=script.batch):
            run.backward(F.cross_entropy(model(x), y))
            if run.is_first:  # as for a figure in a log
                assert model.weight.grad is not None
                seen.append(float(model.weight.grad.norm()))
            run.step()
        run.finish()
        return model.weight.detach().clone(), seen

    model, norms = linear(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in first_pass(script):
        F.cross_entropy(model(x), y).backward()
        assert model.weight.grad is not None
        norms.append(float(model.weight.grad.norm()))
        optimizer.step()
        optimizer.zero_grad()
    try:
        ended = as_workers(workers, tmp_path, work)
    except PhalanxError as error:
        assert error.remedy
        return
    assert ended[0][1] == pytest.approx(norms, rel=1e-10)
    for weights, _ in ended:
        assert_near(weights, model.weight.detach(), "weights")


def _two_models() -> tuple[nn.Linear, nn.Linear]:
    one, two = linear(), nn.Linear(CLASSES, CLASSES).double()
    nn.init.eye_(two.weight)
    nn.init.zeros_(two.bias)
    return one, two


@WORKERS
def test_each_of_two_optimizers_has_gradients_of_its_own(tmp_path: Path, workers: int) -> None:
    """One is clipped and stepped; the other is stepped later, on two batches' gradients."""
    script = Script()

    def trained(
        one: nn.Linear, two: nn.Linear, batches: Any, backward: Any, step: Any
    ) -> list[Tensor]:
        for number, (x, y) in enumerate(batches):
            backward(F.cross_entropy(two(one(x)), y))
            nn.utils.clip_grad_norm_(one.parameters(), 0.1)
            step(0)
            if number % 2:
                step(1)
        return [p.detach() for p in (*one.parameters(), *two.parameters())]

    def optimizers(*models: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.5) for m in models]

    def work(rank: int) -> list[Tensor]:
        models = _two_models()
        made = optimizers(*models)
        run = phalanx.join(models, made)
        batches = run.batches(data_of(script), batch=script.batch)
        ended = trained(*models, batches, run.backward, lambda i: run.step(made[i]))
        run.finish()
        return ended

    def plain_step(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()

    models = _two_models()
    made = optimizers(*models)
    wanted = trained(
        *models, first_pass(script), lambda loss: loss.backward(), lambda i: plain_step(made[i])
    )
    for ended in as_workers(workers, tmp_path, work):
        for found, value in zip(ended, wanted, strict=True):
            assert_near(found, value, "weights")


# -- accumulation ---------------------------------------------------------------------------


# -- a worker without samples ---------------------------------------------------------------
