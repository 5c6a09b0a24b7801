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


@pytest.mark.slow  # test_killed_runs compares the bytes of two runs as well
def test_a_synchronous_run_repeats_bit_for_bit(tmp_path: Path, script: Path) -> None:
    found = []
    for _ in range(2):
        ended = phalanx(
            "run", str(script), "--workers", "2", "--epochs", "1", "--seed", "5", "--json",
            "--strategy", "allreduce:shares=equal",
            cwd=tmp_path,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        run = last_json(ended.stdout)["run"]
        found.append((tmp_path / "runs" / run / "model.safetensors").read_bytes())
    assert found[0] == found[1]


def test_the_same_script_trains_alone_in_process_and_by_two_threads(
    tmp_path: Path, script: Path
) -> None:
    ended = phalanx(
        "run", str(script), "--workers", "2", "--launcher", "inprocess", "--epochs", "2", "--json",
        cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert last_json(ended.stdout)["workers"] == 2


def test_arguments_behind_the_dashes_reach_the_script(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(
        "import sys, torch, phalanx\n"
        "m = torch.nn.Linear(1, 1)\n"
        "run = phalanx.join(m, torch.optim.SGD(m.parameters(), lr=0.1))\n"
        "print('words', sys.argv[1:], run.rank, run.workers, run.is_first)\n"
        "(run.folder / 'note.txt').write_text('kept')\n"
    )
    ended = phalanx("run", str(script), "--json", "--", "--depth", "3 4", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "words ['--depth', '3 4'] 0 1 True" in ended.stderr
    summary = last_json(ended.stdout)
    assert (tmp_path / "runs" / summary["run"] / "files" / "note.txt").read_text() == "kept"
    assert summary["status"] == "done"


def test_dry_run_starts_nothing(tmp_path: Path, script: Path) -> None:
    ended = phalanx("run", str(script), "--workers", "2", "--dry-run", "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    (launch,) = last_json(ended.stdout)["launches"]
    assert [worker["env"]["PHALANX_RANK"] for worker in launch["workers"]] == ["0", "1"]
    assert all(str(script) in worker["argv"] for worker in launch["workers"])
    assert not (tmp_path / "runs").exists()
