"""Losses that are sums over the batch, means over it, and neither."""

from __future__ import annotations

from collections.abc import Callable
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
from phalanx.core.errors import InputError

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")


SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "of torch": lambda out, y: F.cross_entropy(out, y, reduction="sum"),
    "by hand": lambda out, y: F.cross_entropy(out, y, reduction="none").sum(),
    "of squares": lambda out, y: (out - F.one_hot(y, CLASSES)).pow(2).sum(),
    "divided by one": lambda out, y: F.cross_entropy(out, y, reduction="sum") / 1,
    "divided by a worker's part": lambda out, y: F.cross_entropy(out, y, reduction="sum") / 4,
    "divided by a constant": lambda out, y: F.cross_entropy(out, y, reduction="sum") / 8,
    "and a mean": lambda out, y: F.cross_entropy(out, y) + 0.1 * out.pow(2).sum(),
}
MEANS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "of torch": F.cross_entropy,
    "divided by hand": lambda out, y: F.cross_entropy(out, y, reduction="sum") / len(y),
    "divided by the shape": lambda out, y: (out - 1).pow(2).sum() / out.shape[0],
    "multiplied by hand": lambda out, y: (out - 1).pow(2).sum() * (1 / len(y)),
    "of sums of a sample": lambda out, y: (out - 1).pow(2).sum(dim=1).mean(),
    "of sums by einsum": lambda out, y: torch.einsum("nc,nc->n", out, out).mean(),
    "of columns, added up": lambda out, y: out.pow(2).mean(dim=0).sum(),
    "of two parts": lambda out, y: F.cross_entropy(out, y) + 0.1 * out.pow(2).sum(1).mean(),
    "of all": lambda out, y: F.mse_loss(out, F.one_hot(y, CLASSES).double()),
    "of log-sums": lambda out, y: torch.logsumexp(out, dim=1).mean(),
}


def _trained_with(
    measure: Callable[[Tensor, Tensor], Tensor], by: str = "run.backward", **declared: Any
) -> Callable[[int], Tensor]:
    script = Script()

    def work(rank: int) -> Tensor:
        model = linear()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.01), **declared)
        for x, y in run.batches(data_of(script), batch=script.batch):
            error = measure(model(x), y)
            run.backward(error) if by == "run.backward" else error.backward()
            run.step()
        run.finish()
        return model.weight.detach()

    return work


def _trained_plainly(loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in first_pass(Script()):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model.weight.detach()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", ["of torch", "by hand", "of squares", "divided by a constant"])
@pytest.mark.parametrize("by", ["run.backward", "backward"])
def test_a_declared_sum_is_that_of_one_process(
    tmp_path: Path, workers: int, name: str, by: str
) -> None:
    wanted = _trained_plainly(SUMS[name])
    for found in as_workers(workers, tmp_path, _trained_with(SUMS[name], by, loss="sum")):
        assert_near(found, wanted, "weights")


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("by", ["run.backward", "backward"])
def test_a_sum_that_is_not_declared_is_refused_or_right(tmp_path: Path, name: str, by: str) -> None:
    work, wanted = _trained_with(SUMS[name], by), _trained_plainly(SUMS[name])
    (alone,) = as_workers(1, tmp_path / "one", work)
    assert_near(alone, wanted, "weights of one worker")
    try:
        ended = as_workers(2, tmp_path / "two", work)
    except InputError as error:
        assert "sum" in error.cause
        assert 'loss="sum"' in error.remedy
        return
    for found in ended:
        assert_near(found, wanted, "weights")


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_not_taken_for_a_sum(tmp_path: Path, name: str) -> None:
    """Although there are sums in it, of a sample or of parameters."""
    wanted = _trained_plainly(MEANS[name])
    for found in as_workers(2, tmp_path, _trained_with(MEANS[name])):
        assert_near(found, wanted, "weights")


def test_fit_refuses_a_sum_or_trains_with_it_as_one_process(tmp_path: Path) -> None:
    script, loss = Script(), nn.CrossEntropyLoss(reduction="sum")

    def work(rank: int) -> Tensor:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        phalanx.fit(model, optimizer=optimizer, loss=loss, train=data_of(script), epochs=1, batch=8)
        return model.weight.detach()

    try:
        ended = as_workers(2, tmp_path, work)
    except InputError as error:
        assert "sum" in error.cause
        assert error.remedy
        return
    for found in ended:
        assert_near(found, _trained_plainly(loss), "weights")


WEIGHTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "weights of classes": lambda out, y: F.cross_entropy(
        out, y, weight=torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
    ),
    "a class that is ignored": lambda out, y: F.cross_entropy(out, y, ignore_index=1),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_mean_that_is_none_over_samples_is_refused_or_right(tmp_path: Path, name: str) -> None:
    """Torch divides such a loss by the weights it has seen, which differ between workers."""
    try:
        ended = as_workers(2, tmp_path, _trained_with(WEIGHTED[name]))
    except InputError as error:
        assert error.remedy
        return
    for found in ended:
        assert_near(found, _trained_plainly(WEIGHTED[name]), "weights")
