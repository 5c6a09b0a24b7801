"""The whole way, with real processes: run, compare, report; and mistakes that end it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import last_json, phalanx, succeeds

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


def test_compare_tells_who_won(tmp_path: Path) -> None:
    script = tmp_path / "train digits.py"  # a space: nothing may break on it
    script.write_text(SCRIPT)
    ended = succeeds(
        "compare", str(script), "--strategies", "allreduce,switch:at=0.5", "--workers", "2",
        "--json", cwd=tmp_path,
    )  # fmt: skip
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


IN_PROCESS = ["--workers", "3", "--launcher", "inprocess"]
FIT = """
import torch, phalanx
m = torch.nn.Linear(2, 1)
phalanx.fit(m, optimizer=torch.optim.SGD(m.parameters(), lr=0.1), loss=torch.nn.functional.mse_loss,
            train=(torch.randn({samples}, 2), torch.randn({samples}, 1)), epochs=1, batch={batch})
"""


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (FIT.format(samples=2, batch=8), IN_PROCESS, "more than the 2 samples"),
        pytest.param(
            FIT.format(samples=20, batch=2),
            IN_PROCESS,
            "batch of 2 is smaller than the 3",
            marks=pytest.mark.slow,
        ),
        (
            "import phalanx\nif False: phalanx.fit()\n",
            [],
            "never called phalanx.fit or phalanx.join",
        ),
        ("print('hello')\n", [], "calls neither phalanx.fit nor phalanx.join"),
    ],
)
def test_mistakes_that_only_the_script_shows(
    tmp_path: Path, text: str, words: list[str], message: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    ended = phalanx("run", str(script), *words, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    lines = [n for n in ended.stderr.splitlines() if n.startswith("error:")]
    assert len(lines) == 1
