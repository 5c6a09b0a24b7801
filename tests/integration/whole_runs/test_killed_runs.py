"""Whole runs killed at random moments, or with the disk full: what resumes ends where it should.

The training is synchronous and has everything that is easily lost: momentum, batch-norm
statistics, dropout's random numbers, a schedule. Resumed, it has to end with the same bytes as a
run that nobody disturbed.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from commands import children, phalanx, start, succeeds, until

pytestmark = pytest.mark.timeout(600)

SCRIPT = """
import phalanx, torch
from torch import nn
train, test = phalanx.data.load("digits")
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(),
                      nn.Dropout(0.3), nn.Linear(48, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
phalanx.fit(model, optimizer=optimizer, loss=nn.functional.cross_entropy, train=train, test=test,
            epochs=8, batch=16, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7))
"""
EQUAL = ("--workers", "2", "--strategy", "allreduce:shares=equal")
OPTIONS = (*EQUAL, "--checkpoint-every", "1,0.005min")
VICTIMS = ("controller", "worker 0", "worker 1", "everything")
LIMIT = 300.0  # seconds: forty runs may share their machine with others
IDENTICAL, NONE_YET, OVER = "identical", "no checkpoint yet", "over before the kill"


@dataclass(frozen=True)
class Kill:
    victim: str
    moment: float
    """When so much of the training is told to be done; below 0: while the workers start."""
    delay: float = 0.0
    """And so many seconds later: what is told comes four times a second."""


@dataclass(frozen=True)
class Undisturbed:
    model: bytes
    steps: int


def _script(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "digits.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    succeeds("run", _script(folder), *OPTIONS, cwd=folder)
    return Undisturbed(_model(folder), _steps(folder))


def _model(folder: Path) -> bytes:
    """Of the newest run."""
    return (_newest(folder) / "model.safetensors").read_bytes()


def _newest(folder: Path) -> Path:
    return max(path.parent for path in folder.glob("runs/*/launch.json"))


def _runs(folder: Path) -> int:
    return len(list(folder.glob("runs/*/launch.json")))


def _steps(folder: Path) -> int:
    """How many the first worker of the newest run has told."""
    file = _newest(folder) / "events" / "rank-0.jsonl"
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return sum(len(json.loads(line)["began"]) for line in lines if b'"type":"steps"' in line)


def _kill(folder: Path, words: list[str], kill: Kill, steps: int) -> None:
    """Start ``phalanx WORDS`` and end it, or a part of it, by force."""
    before = _runs(folder)
    process = start(*words, cwd=folder)
    try:
        until(lambda: process.poll() is not None or _runs(folder) > before, LIMIT)
        if kill.moment < 0:
            until(lambda: process.poll() is not None or len(_workers(process)) == 2, LIMIT)
        else:
            told = kill.moment * steps
            until(lambda: process.poll() is not None or _steps(folder) > told, LIMIT)
            time.sleep(kill.delay)
        workers = _workers(process)
        for victim in _victims(process, workers, kill.victim):
            victim.kill()
        process.communicate(timeout=LIMIT)
        psutil.wait_procs(workers.values(), timeout=LIMIT)
        assert not any(worker.is_running() for worker in workers.values())
    finally:
        process.kill()


def _workers(process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    found = {}
    for child in children(process.pid):
        try:
            rank = child.environ().get("PHALANX_RANK")
        except psutil.Error:
            continue
        if rank is not None:
            found[int(rank)] = child
    return found


def _victims(
    process: subprocess.Popen[str], workers: dict[int, psutil.Process], named: str
) -> list[subprocess.Popen[str] | psutil.Process]:
    if named == "controller":
        return [process]
    if named == "everything":
        return [process, *(worker for worker in workers.values() if worker.is_running())]
    rank = int(named.split()[1])
    return [workers[rank]] if rank in workers and workers[rank].is_running() else []


def _go_on(folder: Path, undisturbed: Undisturbed) -> str:
    """``phalanx resume`` to the end; what came of it."""
    ended = phalanx("resume", cwd=folder, limit=LIMIT)
    assert "Traceback" not in ended.stderr
    assert "skipped" not in ended.stderr, "a kill must not leave a damaged checkpoint"
    if ended.returncode == 2:
        told = [line for line in ended.stderr.splitlines() if line.startswith("error:")]
        assert len(told) == 1, ended.stderr
        if told[0].endswith("has finished"):
            assert _model(folder) == undisturbed.model
            return OVER
        assert "has no checkpoint to resume from" in told[0]
        return NONE_YET
    assert ended.returncode == 0, ended.stderr
    assert _model(folder) == undisturbed.model
    return IDENTICAL


@pytest.mark.parametrize(
    "kill",
    [
        Kill("worker 1", 0.6),
        pytest.param(Kill("controller", 0.3), marks=pytest.mark.slow),
        pytest.param(Kill("everything", 0.8), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_killed_run_resumes_to_the_same_end(
    tmp_path: Path, undisturbed: Undisturbed, kill: Kill
) -> None:
    _kill(tmp_path, ["run", _script(tmp_path), *OPTIONS], kill, undisturbed.steps)
    assert _go_on(tmp_path, undisturbed) in (IDENTICAL, OVER)


def _any_kill(dice: random.Random, latest: float) -> Kill:
    return Kill(dice.choice(VICTIMS), dice.uniform(-0.1, latest), dice.uniform(0, 0.3))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_forty_kills(
    tmp_path: Path, undisturbed: Undisturbed, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every fourth run is killed again after it was resumed, and resumed again."""
    dice = random.Random(7)
    outcomes: Counter[str] = Counter()
    again = 0
    for number in range(40):
        kill = _any_kill(dice, 0.9)
        folder = tmp_path / str(number)
        _kill(folder, ["run", _script(folder), *OPTIONS], kill, undisturbed.steps)
        if number % 4 == 3 and list(_newest(folder).glob("checkpoints/0*")):
            again += 1
            _kill(folder, ["resume"], _any_kill(dice, 0.2), undisturbed.steps)
        outcome = _go_on(folder, undisturbed)
        outcomes[outcome] += 1
        with capsys.disabled():
            print(f"{number + 1}: {kill.victim} at {kill.moment:.2f}: {outcome}", flush=True)
    with capsys.disabled():
        print(f"40 runs, {40 - outcomes[OVER]} killed, {again} of them twice: {dict(outcomes)}")
    assert outcomes[IDENTICAL] >= 25, "kills that come too early or too late show nothing"
