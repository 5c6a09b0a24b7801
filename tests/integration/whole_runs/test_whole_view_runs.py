"""Scripts as other people write them, unchanged, with two workers: they end as in plain Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import phalanx

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


def _weights(text: str) -> float:
    return float(re.findall(r"^weights (\S+)$", text, re.M)[0])


@pytest.mark.parametrize(
    ("body", "checked"),
    [(LOADER, True), (OWN, True), (BY_HAND, False)],
    ids=["loader", "own", "hand"],
)
def test_it_ends_as_plain_python_does(tmp_path: Path, body: str, checked: bool) -> None:
    (tmp_path / "train.py").write_text(HEAD + body + TAIL)
    alone = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    ended = phalanx("run", "train.py", "--workers", "2", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert _weights(ended.stdout) == pytest.approx(_weights(alone.stdout), rel=1e-9)
    said = re.search(
        r"checked against one process: 12 steps, worst difference \de-\d+", ended.stdout
    )
    assert bool(said) == checked, ended.stdout
    assert not list(tmp_path.glob("runs/*/private-*"))
