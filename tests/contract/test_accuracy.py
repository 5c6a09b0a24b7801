"""Every strategy reaches the same accuracy on digits, with workers of unequal speed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from devices import on_device
from ranks import as_ranks
from strategy_cases import EVERY, quick
from torch import nn

import phalanx
from phalanx.core.settings import RunSettings

SLOW = [1.0, 1.0, 0.4]
BAND = (0.91, 0.98)
"""Of the test images. A gentle rate without momentum, at which staleness costs nothing: at twice
the rate and the batch, overlapped pushes of three workers already cost several points."""


def _accuracy(folder: Path, strategy: str, workers: int) -> float:
    train, test = phalanx.data.load("digits")

    def work(rank: int) -> float:
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        loss = nn.functional.cross_entropy
        phalanx.fit(model, optimizer=optimizer, loss=loss, train=train, epochs=5, batch=36)
        return float(phalanx.accuracy(model(on_device(test[0])), on_device(test[1])))

    found = as_ranks(workers, folder, work, RunSettings(strategy=strategy, slow=SLOW[:workers]))
    assert len(set(found)) == 1  # one model on all workers
    return float(found[0])


@pytest.mark.parametrize("strategy", ["single", *quick(EVERY)])
def test_the_accuracy_is_in_the_band(tmp_path: Path, strategy: str) -> None:
    low, high = BAND
    assert low <= _accuracy(tmp_path, strategy, 1 if strategy == "single" else 3) <= high
