"""Gradients whose squares are finite, although the sum of these over all parameters is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks
import torch
from devices import AWAY
from torch import nn

import phalanx
from phalanx.core.settings import RunSettings

pytestmark = pytest.mark.skipif(AWAY or ranks.HOSTS > 1, reason="brings hosts of its own")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hosts", [1, 2])
def test_hosts_with_unequally_many_workers_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    """A worker alone adds up all squares, which overflows; of two each adds up a half."""
    monkeypatch.setattr(ranks, "HOSTS", hosts)
    monkeypatch.setattr(ranks, "places", lambda: None)

    def work(rank: int) -> list[float]:
        model = nn.Linear(1 << 12, 1, bias=False)
        nn.init.zeros_(model.weight)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1e-18))
        for _ in run.epochs(1):
            for (x,) in run.batches((torch.full((6, 1 << 12), 1.2e18),), batch=3):
                run.backward(model(x).mean())
                run.step()
        return model.weight.detach().flatten().tolist()

    for weights in ranks.as_ranks(3, tmp_path, work, RunSettings(strategy="allreduce")):
        assert weights == pytest.approx([-2.4] * (1 << 12), rel=1e-5)
