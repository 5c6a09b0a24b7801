"""Evaluation wherever the script asks for it: nobody waits for ever, all see one model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import as_ranks
from torch import Tensor, nn

import phalanx
from phalanx.core.settings import RunSettings


def _data(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 6, generator=generator)
    return x, (x[:, 0] > 0).long()


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("samples", [36, 40, 44])
@pytest.mark.parametrize("strategy", ["async", "ssp:bound=3", "groups:size=1"])
def test_in_the_loop_of_workers_with_unequal_numbers_of_batches(
    tmp_path: Path, strategy: str, samples: int, every: int
) -> None:
    def work(rank: int) -> int:
        torch.manual_seed(0)
        model = nn.Linear(6, 2)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        evaluations = 0
        for _ in run.epochs(2):
            for i, (x, y) in enumerate(run.batches(_data(samples), batch=8)):
                if i % every == 0:
                    run.evaluate(phalanx.accuracy, _data(20))
                    evaluations += 1
                run.backward(nn.functional.cross_entropy(model(x), y))
                run.step()
            run.log(test_accuracy=run.evaluate(phalanx.accuracy, _data(20)))
        return evaluations

    chosen = RunSettings(strategy=strategy, slow=[1.0, 0.1])
    assert sum(as_ranks(2, tmp_path, work, chosen)) > 0


def test_workers_that_train_apart_are_evaluated_as_one(tmp_path: Path) -> None:
    """Also after a step that came behind the last round, as accumulation makes them."""

    def work(rank: int) -> Tensor:
        torch.manual_seed(0)
        model, weights = nn.Linear(6, 2), torch.empty(0)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.5))
        for _ in run.epochs(1):
            for x, y in run.batches(_data(40), batch=8):
                run.backward(nn.functional.cross_entropy(model(x), y))
                if run.pending == 2:
                    run.step()
            if run.pending:
                run.step()
            run.evaluate(phalanx.accuracy, _data(20))
            weights = model.weight.detach().clone()
        return weights

    first, second = as_ranks(2, tmp_path, work, RunSettings(strategy="localsgd:every=5"))
    assert torch.equal(first, second)
