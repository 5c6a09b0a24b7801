"""Losses, batches and hooks of adopted scripts that do not come apart into parts: found or said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import phalanx

SCRIPT = """
import sys, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

kind = sys.argv[1]
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
data = TensorDataset(torch.randn(40, 6), torch.randint(0, 4, (40,)))

def padded(samples):  # to the longest of its batch
    x, y = (torch.stack(column) for column in zip(*samples))
    return x[:, : 3 + int(y.max())], y

collate = padded if kind == "padded" else None
loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate)
model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4))
if kind == "hook":
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

def loss_of(x, y):
    out = model(F.pad(x, (0, 6 - x.shape[1])) + (6 - x.shape[1]))
    if kind == "pairs":
        near = F.normalize(out, dim=1)
        return F.cross_entropy(near @ near.roll(1, 1).T, torch.arange(len(out)))
    if kind == "sum":
        return sum((o - t).square().mean() for o, t in zip(out, y))
    return F.cross_entropy(out, y)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(x, y).backward()
        if kind == "sharpness":  # steps up the gradient, and back again after a second look
            old = [p.data.clone() for p in model.parameters()]
            for p in model.parameters():
                p.data = p.data + 0.05 * p.grad / p.grad.norm()
            optimizer.zero_grad()
            loss_of(x, y).backward()
            for p, value in zip(model.parameters(), old):
                p.data = value
        optimizer.step()
    if kind == "clamped":
        for p in model.parameters():
            p.data = p.data.clamp(-0.3, 0.3)
print("weights", *(f"{p.sum().item():.12f}" for p in model.parameters()))
"""


def _weights(out: str) -> str:
    return next(line for line in out.splitlines() if line.startswith("weights"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("pairs", "step 1 differs from that of one process"),
        pytest.param("padded", "differs from that of one process", marks=pytest.mark.slow),
        pytest.param("hook", "differs from that of one process", marks=pytest.mark.slow),
        pytest.param("sum", "differs from that of one process", marks=pytest.mark.slow),
    ],
)
def test_what_does_not_come_apart_is_refused(tmp_path: Path, kind: str, words: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--workers", "2", "--view", "parts")
    ended = phalanx("run", "train.py", *options, "--", kind, cwd=tmp_path)
    assert ended.returncode == 2
    assert words in " ".join(ended.stderr.split()), ended.stderr


def test_what_is_not_checked_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--workers", "2", "--strategy", "async")
    ended = phalanx("run", "train.py", *options, "--", "pairs", cwd=tmp_path)
    assert ended.returncode == 0
    said = " ".join((ended.stdout + ended.stderr).split())
    assert "not checked against one process: under async" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sharpness", "clamped"])
def test_weights_that_the_script_moves_itself_are_those_of_one_process(
    tmp_path: Path, kind: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), kind]
    alone = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    ended = phalanx("run", "train.py", "--workers", "2", "--", kind, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert _weights(ended.stdout) == _weights(alone.stdout)
