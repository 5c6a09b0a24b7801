"""The whole way, with real processes: run, compare, report."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import last_json, phalanx

SCRIPT = """
import sys
import torch, phalanx
from torch import nn

train, test = phalanx.data.load("digits")
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                      nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
phalanx.fit(model, optimizer=optimizer, loss=nn.functional.cross_entropy, train=train, test=test,
            epochs=6, batch=60, best="test_accuracy", validation=0.1, clip=5.0, accumulate=1,
            scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
"""
FIELDS = {
    *("run", "status", "strategy", "system", "workers", "machines", "epochs", "samples"),
    *("seconds", "samples_per_second", "train_loss", "train_accuracy", "test_loss"),
    *("test_accuracy", "validation_loss", "validation_accuracy", "metrics", "precision", "batch"),
    *("seed", "phases", "time", "resources", "bytes_sent", "switches", "exit_codes"),
    *("predicted", "history"),
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train digits.py"  # a space: nothing may break on it
    path.write_text(SCRIPT)
    return path


def test_compare_tells_who_won(tmp_path: Path, script: Path) -> None:
    ended = phalanx(
        "compare", str(script), "--strategies", "allreduce,switch:at=0.5", "--workers", "2",
        "--json", cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    study = last_json(ended.stdout)
    study["runs"] = study["runs"][:3]  # one whose time is doubted is run again at the end
    strategies = [run["strategy"] for run in study["runs"]]
    assert strategies == ["single", "allreduce", "switch:at=0.5"]
    for run in study["runs"]:
        assert set(run) >= FIELDS
        assert run["status"] == "done"
        assert run["test_accuracy"] >= 0.9
        assert run["samples"] == 6 * 1350
        assert run["epochs"] == len(run["history"]) == 6
        assert run["exit_codes"] == [0] * run["workers"]
        folder = tmp_path / "runs" / run["run"]
        assert (folder / "model.safetensors").stat().st_size > 0
        assert (folder / "best.safetensors").stat().st_size > 0
    switched = study["runs"][-1]
    assert [(s["from"], s["to"], s["at_epoch"]) for s in switched["switches"]] == [
        ("allreduce", "async", pytest.approx(3.0, abs=0.1))
    ]
    report = (tmp_path / "runs" / study["study"] / "report.html").read_text()
    assert "switch:at=0.5" in report
    assert "http://" not in report.replace("http://www.w3.org", "")
