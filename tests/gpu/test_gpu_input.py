"""Data of the host, copied ahead or once; checkpoints that leave a GPU beside the training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import last_json, phalanx
from safetensors.torch import load_file
from torch import Tensor

from phalanx.core.run_folder.run_paths import RunPaths

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SCRIPT = """
import torch, phalanx
from torch import nn

torch.use_deterministic_algorithms(True)
train, test = phalanx.data.load("digits")
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
phalanx.fit(model, optimizer=optimizer, loss=nn.CrossEntropyLoss(), train=train, test=test,
            epochs=4, batch=100, augment={augment})
"""
STAYS = "import phalanx.data.placement as placement\nplacement.SHARE = 0.0  # nothing fits\n"
POOL = "machines:\n  here: {host: here, gpus: 1}\n"


def _weights(
    folder: Path, *words: str, augment: str = "None", before: str = ""
) -> dict[str, Tensor]:
    script, pool = folder / "train.py", folder / "pool.yaml"
    script.write_text(before + SCRIPT.format(augment=augment))
    pool.write_text(POOL)
    words = ("--pool", str(pool), "--workers", "1", *words)
    return _ended(folder, "run", str(script), *words)


def _ended(folder: Path, *words: str) -> dict[str, Tensor]:
    ended = phalanx(*words, "--json", cwd=folder, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    assert ended.returncode == 0, ended.stderr
    return load_file(RunPaths(folder / "runs" / last_json(ended.stdout)["run"]).model)


@pytest.mark.parametrize("augment", ["None", "phalanx.data.crop_and_flip(1)"])
def test_where_the_data_are_changes_nothing(tmp_path: Path, augment: str) -> None:
    there = _weights(tmp_path, augment=augment)
    host = _weights(tmp_path, augment=augment, before=STAYS)
    assert all(torch.equal(there[name], host[name]) for name in there)


def test_a_resumed_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole = _weights(tmp_path, "--checkpoint-every", "1")
    _weights(tmp_path, "--checkpoint-every", "1", "--epochs", "2", "--name", "half")
    found = _ended(tmp_path, "resume", "half", "--epochs", "4")
    assert all(torch.equal(found[name], whole[name]) for name in whole)
