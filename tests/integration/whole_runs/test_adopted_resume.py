"""A resumed script that is adopted goes on with its schedulers and averages, each with its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import phalanx

SCRIPT = """
import gc, os
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(32, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gc.disable()
# The collector lists young objects first: which are young differs from run to run.
averages, schedulers = [], []
for decay, size in ((0.9, 1), (0.1, 2)):
    averages.append(AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)))
    schedulers.append(StepLR(optimizer, size, 1 - decay / 10))
    if os.environ.get("COLLECT") and size == 1:
        gc.collect()
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        for average in averages:
            average.update_parameters(model)
    for scheduler in schedulers:
        scheduler.step()
kept = {"averages": [average.state_dict() for average in averages], "model": model.state_dict(),
        "schedulers": [scheduler.state_dict() for scheduler in schedulers]}
torch.save(kept, "kept.pt")
"""


@pytest.mark.parametrize("again", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_two_of_a_kind_are_not_mixed_up(tmp_path: Path, again: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("--workers", "2", "--checkpoint-every", "1", "--name", "first")
    ended = phalanx("run", "train.py", *words, cwd=tmp_path, COLLECT="" if again else "1")
    assert ended.returncode == 0, ended.stderr
    wanted = torch.load(tmp_path / "kept.pt")
    ended = phalanx("resume", "first", "--checkpoint", "1", cwd=tmp_path, COLLECT=again)
    assert ended.returncode == 0, ended.stderr
    found = torch.load(tmp_path / "kept.pt")
    assert found["schedulers"] == wanted["schedulers"]
    for mine, other in zip(found["averages"], wanted["averages"], strict=True):
        for name, value in other.items():
            assert torch.equal(mine[name], value), name
    assert torch.equal(found["model"]["weight"], wanted["model"]["weight"])
