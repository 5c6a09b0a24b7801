"""Rates: alike on all workers under lockstep, and by the progress of all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import AWAY
from plain_compare import assert_near
from plain_worlds import BATCH, CLASSES, FEATURES, as_workers, data_of, linear
from strategy_cases import NAMES, is_lockstep
from torch import Tensor, nn
from torch.nn import functional as F
from training import train_epoch

import phalanx
from phalanx.core.errors import InputError

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")
TOGETHER = [name for name in NAMES if is_lockstep(name)]
FREELY = [name for name in NAMES if not is_lockstep(name)]


def _with_options(change: Callable[[dict[str, Any], int], None]) -> Callable[[int], None]:
    """A script that sets an option of its optimizer after the first pass."""

    def work(rank: int) -> None:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        run = phalanx.join(model, optimizer)
        for _ in run.epochs(2):
            train_epoch(run, model, data_of(), BATCH)
            change(optimizer.param_groups[0], rank)

    return work


@pytest.mark.parametrize("strategy", TOGETHER)
@pytest.mark.parametrize("option", ["lr", "momentum", "weight_decay"])
def test_options_that_differ_between_workers_are_refused(
    tmp_path: Path, strategy: str, option: str
) -> None:
    def change(group: dict[str, Any], rank: int) -> None:
        group[option] = 0.01 * (1 + rank)

    with pytest.raises(InputError) as refused:
        as_workers(2, tmp_path, _with_options(change), strategy=strategy)
    assert option in refused.value.cause or "rate" in refused.value.cause
    assert refused.value.remedy


@pytest.mark.parametrize("strategy", TOGETHER)
def test_options_that_change_alike_are_followed(tmp_path: Path, strategy: str) -> None:
    def change(group: dict[str, Any], rank: int) -> None:
        group.update(lr=0.02, momentum=0.1, weight_decay=0.01)

    as_workers(2, tmp_path, _with_options(change), strategy=strategy)


def test_buffers_are_alike_when_a_script_tests_the_model_itself(tmp_path: Path) -> None:
    """Statistics of batch norm, which each worker has of its own samples."""
    probe = torch.linspace(-1, 1, 4 * FEATURES, dtype=torch.float64).view(4, -1)

    def work(rank: int) -> list[Tensor]:
        model = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES)).double()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        seen = []
        for _ in run.epochs(2):
            train_epoch(run, model, data_of(44), BATCH)
            model.eval()
            with torch.no_grad():
                seen.append(model(probe))
            model.train()
        return seen

    one, two = as_workers(2, tmp_path, work)
    for a, b in zip(one, two, strict=True):
        assert_near(a, b, "outputs")


# -- schedules per batch --------------------------------------------------------------------


def _one_cycle(optimizer: torch.optim.Optimizer, turns: int) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=turns)


def _plain_rates(epochs: int, length: int) -> list[tuple[float, float]]:
    """After each pass: the rate, and the momentum that goes with it."""
    model, seen = linear(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = _one_cycle(optimizer, length * epochs + 1)
    for _ in range(epochs):
        for _ in range(length):
            optimizer.step()
            scheduler.step()
        group = optimizer.param_groups[0]
        seen.append((group["lr"], group["momentum"]))
    return seen


@pytest.mark.parametrize("speeds", [[1.0, 1.0, 1.0], [0.1, 0.02, 0.1]], ids=["equal", "unequal"])
@pytest.mark.parametrize("strategy", NAMES)
def test_a_schedule_per_batch_counts_global_progress(
    tmp_path: Path, strategy: str, speeds: list[float]
) -> None:
    """It ends where it should, whoever had how many batches, and is alike after each pass."""
    epochs, length = 3, 9

    def work(rank: int) -> list[tuple[float, float]]:
        model, seen = linear(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        run = phalanx.join(model, optimizer)
        scheduler = _one_cycle(optimizer, length * epochs + 1)
        for _ in run.epochs(epochs):
            train_epoch(run, model, data_of(97), 12, scheduler.step)
            group = optimizer.param_groups[0]
            seen.append((group["lr"], group["momentum"]))
        return seen

    wanted = _plain_rates(epochs, length)
    for found in as_workers(3, tmp_path, work, strategy=strategy, slow=speeds):
        for one, other in zip(found, wanted, strict=True):
            assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("strategy", FREELY)
def test_a_schedule_never_overruns_where_batches_are_taken_freely(
    tmp_path: Path, strategy: str
) -> None:
    """With as many turns as there are batches: one more would be an error of torch.

    Torch itself raises the rate again at the last turn.
    """

    def work(rank: int) -> list[float]:
        model, rates = linear(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = phalanx.join(model, optimizer)
        scheduler = _one_cycle(optimizer, 24)
        for _ in run.epochs(2):
            for x, y in run.batches(data_of(96), batch=8):
                run.backward(F.cross_entropy(model(x), y))
                run.step()
                rates.append(optimizer.param_groups[0]["lr"])
                scheduler.step()
        return [*rates, optimizer.param_groups[0]["lr"]]

    ended = as_workers(3, tmp_path, work, strategy=strategy, slow=[0.1, 0.01, 0.05])
    assert len({round(rates[-1], 12) for rates in ended}) == 1
    for rates in ended:
        highest = rates.index(max(rates))
        # The last turn of all is beyond the cycle, and no step uses it.
        assert rates[highest:-1] == sorted(rates[highest:-1], reverse=True)
        assert rates[:highest] == sorted(rates[:highest])
