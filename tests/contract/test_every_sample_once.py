"""Each sample reaches the loss exactly once per epoch, whatever the strategy and the speeds."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from ranks import as_ranks
from torch import Tensor, nn

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.core.spec import parse_spec

SAMPLES, EPOCHS, BATCH = 61, 3, 12
STRATEGIES = [
    "allreduce",
    "async",
    "allreduce@0.5/async",
    "async@0.5/allreduce",
    "async@1e/allreduce",
]


class _Model(nn.Module):
    """Passes the sample's number on, so that the loss can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layer(x[:, 1:]), x[:, :1]], dim=1)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_sample_once_with_a_slow_worker(tmp_path: Path, strategy: str, workers: int) -> None:
    seen: list[list[tuple[int, int]]] = [[] for _ in range(workers)]
    numbers = torch.arange(SAMPLES, dtype=torch.float32).unsqueeze(1)
    data = torch.cat([numbers, torch.randn(SAMPLES, 1)], dim=1), torch.zeros(SAMPLES)

    def work(rank: int) -> None:
        model = _Model()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1e-3))
        for epoch in run.epochs(EPOCHS):
            for x, _ in run.batches(data, batch=BATCH):
                outputs = model(x)
                seen[rank] += [(epoch, int(n)) for n in outputs[:, 1]]
                time.sleep(0.003 if rank == workers - 1 else 0.001)  # one is three times as slow
                run.backward(outputs[:, 0].square().mean())
                run.step()

    as_ranks(workers, tmp_path, work, RunSettings(strategy=strategy))
    counts = Counter(entry for part in seen for entry in part)
    assert counts == Counter({(e, n): 1 for e in range(EPOCHS) for n in range(SAMPLES)})
    if all(phase.traits.lockstep for phase in parse_spec(strategy).phases):
        assert all(part for part in seen)  # a free-running worker may come too late for any batch
