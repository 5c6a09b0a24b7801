"""Scripts as other people write them, unchanged, with two workers: they end as in plain Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import phalanx

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.summary.summary import summarise

pytestmark = pytest.mark.runs
HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).double()
"""
TAIL = """
print("weights", sum(float(p.detach().abs().sum()) for p in model.parameters()), flush=True)
"""
LOADER = """
class Noisy(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        return torch.randn(6, dtype=torch.float64) + i % 3, i % 3

if __name__ == "__main__":
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(Noisy(), batch_size=12, shuffle=True, num_workers=2)
    seen = 0
    for epoch in range(3):
        for x, y in loader:
            seen += len(x)
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + seen / 100)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, reduction="sum").div(len(x)).backward()
            optimizer.step()
"""
OWN = """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(200, 6, dtype=torch.float64)
y = (x[:, 0] > 0).long()
for step in range(70):
    chosen = torch.randint(200, (16,))
    optimizer.zero_grad()
    F.cross_entropy(model(x[chosen]), y[chosen]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
"""
BY_HAND = """
for step in range(30):
    x = torch.randn(16, 6, dtype=torch.float64)
    loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
"""
CLOSURES = """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
x = torch.randn(40, 6, dtype=torch.float64)
y = (x[:, 0] > 0).long()
for step in range(20):
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + 0.1 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        return loss
    optimizer.step(closure)
"""
LATER = """
optimizer = torch.optim.Adam(model[0].parameters(), lr=0.01)
x = torch.randn(48, 6, dtype=torch.float64)
loader = DataLoader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), 12, shuffle=True)
for epoch in range(3):
    for number, (a, b) in enumerate(loader):
        if (epoch, number) == (0, 2):
            late = torch.optim.SGD(model[3].parameters(), lr=0.1)
        model.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
        if (epoch, number) >= (0, 2):
            late.step()
for step in range(10):
    last = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + step))
    model.zero_grad()
    F.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
    last.step()
"""


def _weights(text: str) -> float:
    return float(re.findall(r"^weights (\S+)$", text, re.M)[0])


@pytest.mark.parametrize(
    ("body", "checked", "steps"),
    [
        (LOADER, 12, 24),
        (OWN, 12, 70),
        (BY_HAND, 0, 29),
        (CLOSURES, 12, 20),
        (LATER, 6, 12 + 10 + 10),
    ],
    ids=["loader", "own", "hand", "closures", "later"],
)
def test_it_ends_as_plain_python_does(tmp_path: Path, body: str, checked: int, steps: int) -> None:
    (tmp_path / "train.py").write_text(HEAD + body + TAIL)
    alone = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    ended = phalanx("run", "train.py", "--workers", "2", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert _weights(ended.stdout) == pytest.approx(_weights(alone.stdout), rel=1e-9)
    said = re.findall(r"one process: (\d+) steps, worst difference \de-\d+", ended.stdout)
    assert said == [str(checked)] * bool(checked), ended.stdout
    (run,) = tmp_path.glob("runs/*")
    assert [worker.steps for worker in summarise(RunPaths(run)).per_worker] == [steps, steps]
    assert not list(tmp_path.glob("runs/*/private-*"))
