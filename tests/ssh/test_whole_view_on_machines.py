"""Unchanged scripts on three machines, of which one is slow: they end as plain Python does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from lab_machines import MakeLab, lab
from ssh_runs import Bench

from phalanx.lab.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.machines, pytest.mark.timeout(600)]
__all__ = ["lab"]
SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(120, 6, dtype=torch.float64)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
def step(a, b):
    optimizer.zero_grad()
    out = F.normalize(model(a), dim=1)
    same = (b[:, None] == b).double()
    F.binary_cross_entropy_with_logits(out @ out.T, same).backward()  # compares samples
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
data = TensorDataset(x, (x[:, 0] > 0).long())
for epoch in range(3):
    for a, b in DataLoader(data, batch_size=24, shuffle=True):
        step(a, b)
for _ in range(20):
    chosen = torch.randint(120, (24,))
    step(*data[chosen])
print("weights", sum(float(p.detach().abs().sum()) for p in model.parameters()), flush=True)
"""


@pytest.fixture(scope="module")
def machines(lab: MakeLab) -> Iterator[Lab]:
    yield lab(3)


def test_it_ends_as_plain_python_does(bench: Bench) -> None:
    script = bench.project / "train.py"
    script.write_text(SCRIPT)
    alone = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=True
    )
    ended = bench.do("run", "train.py", "--pool", str(bench.pool), limit=300)
    assert ended.code == 0, ended.text
    wanted, found = (
        float(re.findall(r"^weights (\S+)$", text, re.M)[0]) for text in (alone.stdout, ended.text)
    )
    assert found == pytest.approx(wanted, rel=1e-9)
    assert "checked against one process: 12 steps" in ended.text
