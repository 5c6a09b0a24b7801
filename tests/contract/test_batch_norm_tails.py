"""A last batch never leaves batch norm a single sample, under any strategy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import as_ranks
from strategy_cases import UNCODED
from torch import nn

import phalanx
from phalanx.core.settings import RunSettings


@pytest.mark.parametrize(("samples", "workers"), [(27, 2), (29, 3)])
@pytest.mark.parametrize("strategy", UNCODED)
def test_training_ends_with_every_sample(
    tmp_path: Path, strategy: str, samples: int, workers: int
) -> None:
    def work(rank: int) -> list[int]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        x, seen = torch.randn(samples, 4, generator=torch.Generator().manual_seed(1)), []
        for _ in run.epochs(1):
            for part, numbers in run.batches((x, torch.arange(samples)), batch=8):
                seen += numbers.tolist() if run.samples else []
                run.backward(model(part).mean())
                run.step()
        return seen

    found = as_ranks(workers, tmp_path, work, RunSettings(strategy=strategy))
    assert sorted(n for part in found for n in part) == list(range(samples))
