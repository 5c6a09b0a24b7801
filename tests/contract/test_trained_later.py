"""Blocks that are unfrozen, frozen or added while a script trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from devices import AWAY
from plain_worlds import as_workers
from strategy_cases import SAME_SUM
from torch import nn

import phalanx

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")


@pytest.mark.parametrize("way", ["unfrozen", "added", "added with a group to itself"])
@pytest.mark.parametrize("strategy", SAME_SUM)
def test_trained_later_under_every_strategy(tmp_path: Path, strategy: str, way: str) -> None:
    """The gradient is 1 everywhere and always, so each batch moves each weight by the rate."""
    rate, batches, epochs = 0.1, 4, 3
    x = torch.ones(12 * batches, 1, dtype=torch.float64)

    def work(rank: int) -> list[float]:
        early, late = (nn.Linear(1, 1, bias=False).double() for _ in range(2))
        for layer in (early, late):
            nn.init.zeros_(layer.weight)
        late.requires_grad_(False)
        model = nn.ModuleList([early, late])
        given = model.parameters() if way == "unfrozen" else early.parameters()
        optimizer = torch.optim.SGD(given, lr=rate)
        run = phalanx.join(model, optimizer)
        for epoch in run.epochs(epochs):
            if epoch == 1:
                late.requires_grad_(True)
                if way == "added":
                    optimizer.add_param_group({"params": [late.weight]})
                elif way != "unfrozen":
                    optimizer.add_param_group({"params": late.parameters(), "lr": rate / 4})
            for (part,) in run.batches((x,), batch=12):
                run.backward((early(part) + late(part)).mean())
                run.step()
        return [float(early.weight), float(late.weight)]

    moved = rate * batches
    slower = 0.25 if way == "added with a group to itself" else 1.0
    for early, late in as_workers(3, tmp_path, work, strategy=strategy):
        assert early == pytest.approx(-moved * epochs, rel=1e-9)
        assert late == pytest.approx(-moved * (epochs - 1) * slower, rel=1e-9)


@pytest.mark.parametrize("strategy", ["async", "ssp", "groups:size=1"])
def test_a_worker_without_a_batch_of_the_epoch_follows_too(tmp_path: Path, strategy: str) -> None:
    """Where workers run freely, one chunk of samples leaves the others without any."""
    x = torch.ones(3, 1, dtype=torch.float64)

    def work(rank: int) -> float:
        early, late = (nn.Linear(1, 1, bias=False).double() for _ in range(2))
        nn.init.zeros_(late.weight)
        late.requires_grad_(False)
        optimizer = torch.optim.SGD([*early.parameters(), *late.parameters()], lr=0.1)
        run = phalanx.join(nn.ModuleList([early, late]), optimizer)
        for epoch in run.epochs(2):
            late.requires_grad_(epoch == 1)
            for (part,) in run.batches((x,), batch=9):
                run.backward((early(part) + late(part)).mean())
                run.step()
        return float(late.weight)

    assert set(as_workers(3, tmp_path, work, strategy=strategy)) != {0.0}
