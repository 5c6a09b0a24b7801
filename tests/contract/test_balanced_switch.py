"""Shares that changed while workers ran free are the same for all when they step together again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from on_hosts import HOSTS
from ranks import as_ranks
from torch import nn

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.observe.events.event_types import Balanced, Joined, read_events

SAMPLES, EPOCHS, BATCH = 1920, 3, 40


@pytest.mark.parametrize("after", ["allreduce", "localsgd:every=3"])
def test_each_sample_once_after_balanced_free_training(tmp_path: Path, after: str) -> None:
    seen: list[list[tuple[int, int]]] = [[], []]
    data = torch.arange(SAMPLES, dtype=torch.float32).unsqueeze(1), torch.zeros(SAMPLES)

    def work(rank: int) -> None:
        model = nn.Linear(1, 1)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1e-9))
        for epoch in run.epochs(EPOCHS):
            for x, _ in run.batches(data, batch=BATCH):
                seen[rank] += [(epoch, int(n)) for n in x[:, 0]] if run.samples else []
                run.backward(model(x).square().mean())
                run.step()

    chosen = RunSettings(strategy=f"ssp:bound=2@0.5/{after}", balance="auto", slow=[1.0, 0.25])
    as_ranks(2, tmp_path, work, chosen)
    counts = Counter(entry for part in seen for entry in part)
    assert counts == Counter({(e, n): 1 for e in range(EPOCHS) for n in range(SAMPLES)})
    if HOSTS:
        return  # between hosts time is real, and talk takes more of it than such a model
    assert len(seen[0]) > 2 * len(seen[1]), "the slow worker was given less"
    (log,) = tmp_path.rglob("rank-0.jsonl")
    events = list(read_events(log))
    told = [event for event in events if isinstance(event, Balanced)]
    assert told and told[0].shares[0] > told[0].shares[1]
    assert all(sum(event.shares) == pytest.approx(1.0) for event in told)
    assert [event.phase for event in events if isinstance(event, Joined)] == ["ssp:bound=2"]
