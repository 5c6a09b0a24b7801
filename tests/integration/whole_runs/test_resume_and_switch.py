"""Runs that are gone on with, changed while they train, and taken home: as a user does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import interrupt, last_json, phalanx, start, succeeds, until
from safetensors.numpy import load_file

pytestmark = pytest.mark.timeout(600)

SCRIPT = """
import phalanx, torch
from torch import nn
train, test = phalanx.data.load("digits")
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(),
                      nn.Dropout(0.2), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
phalanx.fit(model, optimizer=optimizer, loss=nn.functional.cross_entropy, train=train, test=test,
            epochs=2, batch=32, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8))
"""
SYNCHRONOUS = ("--workers", "2", "--strategy", "allreduce:shares=equal")
SHAPES = {"1.weight": (32, 64), "2.running_mean": (32,), "5.bias": (10,)}


def _script(folder: Path) -> str:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def _runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("runs/*/launch.json"))


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(_runs(folder)[-1].glob("checkpoints/0*"))


def _manifest(folder: Path) -> dict[str, Any]:
    """Of the newest checkpoint of the newest run."""
    manifest: dict[str, Any] = json.loads((_checkpoints(folder)[-1] / "manifest.json").read_bytes())
    return manifest


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a synchronous run of two epochs, which is done."""
    folder = tmp_path_factory.mktemp("short")
    succeeds("run", _script(folder), *SYNCHRONOUS, "--name", "short", cwd=folder)
    return folder


@pytest.mark.slow
def test_more_epochs_end_where_a_longer_run_ends(short: Path, tmp_path: Path) -> None:
    done = phalanx("resume", "short", cwd=short)
    assert done.returncode == 2 and "has finished" in done.stderr and "--epochs" in done.stderr
    first = succeeds("resume", "short", "--epochs", "3", "--name", "more", cwd=short)
    assert "after epoch 2" in first.stderr
    assert "epoch 2/3  already trained, evaluated again  test accuracy 9" in first.stderr
    succeeds("resume", "more", "--epochs", "4", "--name", "most", cwd=short)
    succeeds("run", _script(tmp_path), *SYNCHRONOUS, "--epochs", "4", cwd=tmp_path)
    resumed = _runs(short)[-1] / "model.safetensors"
    assert resumed.read_bytes() == (_runs(tmp_path)[-1] / "model.safetensors").read_bytes()


def test_a_run_that_ended_without_its_model_is_resumed(short: Path) -> None:
    """As when the controller is killed after the last epoch, before the model has come home."""
    run = _runs(short)[-1]
    model = run / "model.safetensors"
    aside = model.rename(run / "aside")
    again = phalanx("resume", run.name, "--name", "again", cwd=short)
    aside.rename(model)
    assert again.returncode == 0, again.stderr
    written = _runs(short)[-1] / "model.safetensors"
    assert written != model and written.read_bytes() == model.read_bytes()


def test_another_strategy_and_another_number_of_workers(short: Path) -> None:
    words = ("--checkpoint", "1", "--strategy", "ssp:bound=2", "--workers", "3")
    ended = succeeds("resume", "short", *words, "--name", "other", "--json", cwd=short)
    summary = last_json(ended.stdout)
    assert (summary["strategy"], summary["workers"]) == ("ssp:bound=2", 3)
    assert summary["test_accuracy"] > 0.9
    listed = last_json(phalanx("runs", "--json", cwd=short).stdout)["runs"]
    origin = next(
        run["run"] for run in listed if run["run"].endswith("short-allreduce-shares-equal")
    )
    assert next(run for run in listed if run["run"] == summary["run"])["resumes"] == (
        f"{origin}, checkpoint 1"
    )


def test_switched_by_hand_exported_interrupted_and_resumed(tmp_path: Path) -> None:
    words = ("--workers", "2", "--epochs", "100000")
    process = start("run", _script(tmp_path), *words, cwd=tmp_path)
    until(lambda: bool(_runs(tmp_path)) and bool(_checkpoints(tmp_path)))
    for spec in ("async", "ssp:bound=3", "localsgd:every=4", "allreduce", "async"):
        switched = last_json(phalanx("switch", spec, "--json", cwd=tmp_path).stdout)
        assert switched["switched"] and switched["after"] == spec
    until(lambda: _manifest_or_none(tmp_path) == "async")
    succeeds("export", "--output", "going.safetensors", cwd=tmp_path)
    _, errors = interrupt(process)
    assert process.returncode == 130 and "Traceback" not in errors
    saved = _manifest(tmp_path)
    ended = succeeds("resume", "--epochs", str(saved["epoch"] + 3), "--json", cwd=tmp_path)
    assert last_json(ended.stdout)["strategy"] == "async"
    final = phalanx("export", "--output", "final.safetensors", cwd=tmp_path)
    assert "the final weights" in final.stdout
    for name in ("going", "final"):
        weights = load_file(tmp_path / f"{name}.safetensors")
        assert {key: weights[key].shape for key in SHAPES} == SHAPES


def _manifest_or_none(folder: Path) -> str | None:
    """The strategy of the newest checkpoint, unless it is being replaced just now."""
    try:
        return str(_manifest(folder)["strategy"])
    except (FileNotFoundError, IndexError):
        return None
