"""How runs end when something goes wrong: in time, with one clear line, and with nothing left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from commands import children, interrupt, last_json, phalanx, start, until

ENDLESS = """
import torch, phalanx
from torch import nn
x, y = torch.randn(4000, 8), torch.randint(0, 2, (4000,))
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
phalanx.fit(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss=nn.functional.cross_entropy, train=(x, y), test=(x, y), epochs=100000, batch=20)
"""
LEAVES = """
import os, pathlib, torch, phalanx
model = torch.nn.Linear(4, 1)
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in run.epochs(2):
    for (x,) in run.batches((torch.ones(8, 4),), batch=4):
        run.backward(model(x).mean())
        run.step()
    break
model = pathlib.Path(os.environ["PHALANX_RUN"]) / "model.safetensors"
(model / "in the way").mkdir(parents=True)
"""
STRATEGIES = ["allreduce", pytest.param("async", marks=pytest.mark.slow)]
"""Slow: test_stop_saves and the contract's test_lost_workers show the same of async in less."""


def _segments() -> set[str]:
    """Shared memory by name, but for semaphores of other tests that run at the same time."""
    found = os.listdir("/dev/shm")  # noqa: PTH208
    return {name for name in found if not name.startswith("sem.mp-")}


def _script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def _training(folder: Path) -> bool:
    """Both ranks have written steps."""
    files = list(folder.glob("runs/*/events/rank-*.jsonl"))
    return len(files) == 2 and all(b'"steps"' in f.read_bytes() for f in files)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ctrl_c_while_training(tmp_path: Path, strategy: str) -> None:
    segments = _segments()
    script = _script(tmp_path, ENDLESS)
    process = start("run", script, "--workers", "2", "--strategy", strategy, cwd=tmp_path)
    until(lambda: _training(tmp_path))
    workers = children(process.pid)
    assert len(workers) >= 2
    _, errors = interrupt(process)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert not any(worker.is_running() for worker in workers)
    assert _segments() <= segments
    listed = phalanx("runs", "--json", cwd=tmp_path)
    assert [run["status"] for run in last_json(listed.stdout)["runs"]] == ["stopped"]
    assert phalanx("report", cwd=tmp_path).returncode == 0
    assert list(tmp_path.glob("runs/*/report.html"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_worker_killed_while_training(tmp_path: Path, strategy: str) -> None:
    script = _script(tmp_path, ENDLESS)
    process = start("run", script, "--workers", "2", "--strategy", strategy, cwd=tmp_path)
    until(lambda: _training(tmp_path))
    workers = [p for p in children(process.pid) if p.environ().get("PHALANX_RANK") == "1"]
    os.kill(workers[0].pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "worker 1" in errors
    assert "rank-1.log" in errors
    assert not psutil.pid_exists(process.pid) or not children(process.pid)


def test_a_script_that_raises_shows_its_traceback_once(tmp_path: Path) -> None:
    text = "import phalanx\ndef broken():\n    raise ValueError('mine')\nphalanx.fit(broken())\n"
    ended = phalanx("run", _script(tmp_path, text), "--workers", "2", cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback (most recent call last)") == 1
    assert ended.stderr.count("in broken") == 1
    assert "worker" in ended.stderr
    assert "phalanx/launch" not in ended.stderr
    assert "Traceback" not in ended.stdout


@pytest.mark.slow  # test_controller shows it of scripts without torch
def test_a_model_that_cannot_be_written_after_the_script_is_no_success(tmp_path: Path) -> None:
    """The script leaves its loop early: what is left to do follows when it has ended."""
    script = _script(tmp_path, LEAVES)
    ended = phalanx("run", script, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    (line,) = [n for n in ended.stderr.splitlines() if n.startswith("error:")]
    assert "model.safetensors" in line


def test_one_rank_that_raises_is_named(tmp_path: Path) -> None:
    text = ENDLESS.replace(
        "phalanx.fit(", "import os\nif os.environ['PHALANX_RANK'] == '1': 1 / 0\nphalanx.fit("
    )
    ended = phalanx("run", _script(tmp_path, text), "--workers", "2", cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.count("1 / 0") == 1
    assert "1 / 0" not in ended.stdout
    assert "ZeroDivisionError" in ended.stderr
    assert "worker 1" in ended.stderr


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
    ended = phalanx("run", _script(tmp_path, text), *words, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    lines = [n for n in ended.stderr.splitlines() if n.startswith("error:")]
    assert len(lines) == 1
