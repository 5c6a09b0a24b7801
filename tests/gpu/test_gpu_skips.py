"""A GPU that skips a step by itself: nothing of it is left, and the run says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import last_json, phalanx
from safetensors.torch import load_file

from phalanx.core.run_folder.run_paths import RunPaths

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SCRIPT = """
import torch, phalanx
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(1000, 20).double(), torch.randint(0, 5, (1000,))
x[{bad}] = float("nan")
model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5)).double()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01, foreach={foreach})
phalanx.fit(model, optimizer=optimizer, loss=nn.CrossEntropyLoss(), train=(x, y), epochs=3,
            batch=100)
"""
ADOPTED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(1000, 20).double(), torch.randint(0, 5, (1000,))
x[{bad}] = float("nan")
model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5)).double().cuda()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01, foreach={foreach})
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a.cuda()), b.cuda()).backward()
        optimizer.step()
"""


@pytest.mark.parametrize("text", [SCRIPT, ADOPTED], ids=["fit", "unchanged"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_the_step_of_a_bad_batch_is_skipped(tmp_path: Path, text: str, optimizer: str) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text("machines:\n  here: {host: here, gpus: 1}\n")
    found = {}
    for foreach in ("True", "None"):  # asked by the host, and skipped on the GPU
        script = tmp_path / f"train_{foreach}.py"
        script.write_text(text.format(bad=[7], optimizer=optimizer, foreach=foreach))
        words = ("run", str(script), "--pool", str(pool), "--workers", "1", "--json")
        ended = phalanx(*words, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        summary = last_json(ended.stdout)
        assert summary["nonfinite_steps"] == 3  # one in each epoch
        assert any("fused" in note for note in summary["notes"]) == (foreach == "None")
        weights = load_file(RunPaths(tmp_path / "runs" / summary["run"]).model)
        found[foreach] = summary["train_loss"], weights
    (loss, asked), (other, skipped) = found.values()
    assert other == pytest.approx(loss, rel=1e-9)
    for name, value in asked.items():
        assert torch.allclose(skipped[name], value, rtol=1e-9, atol=1e-12), name
