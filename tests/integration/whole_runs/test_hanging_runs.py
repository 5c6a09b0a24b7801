"""Three ways to hang: the run names the worker, its step and where it is, and who waits for it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from commands import start

pytestmark = pytest.mark.timeout(180)

SCRIPT = """
import os, pathlib, signal, threading, time
import phalanx, torch
from torch import nn

def hang(how):
    pathlib.Path("hangs").touch()
    if how == "busy":
        while True:
            pass
    if how == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    os.kill(os.getpid(), signal.SIGSTOP)

train, test = phalanx.data.load("digits")
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.05))
steps = 0
for epoch in run.epochs(1000):
    for x, y in run.batches(train, batch=64):
        steps += 1
        time.sleep(0.05)
        if run.rank == 1 and steps == 60:
            hang("HOW")
        run.backward(nn.functional.cross_entropy(model(x), y))
        run.step()
"""
SECONDS = 60.0
"""Far more than the limit of ten, on a crowded machine; how soon it is said is in the line."""
LINE = re.compile(
    r"worker 1 on here has not finished step (\d+) for (\d+) s: (.*?); worker 0 on here waits for "
    r"that \(stacks: (\S+)\)"
)


@pytest.mark.parametrize(
    ("how", "does"),
    [
        ("stop", r"a signal stopped it \(kill -CONT \d+ lets it go on\), before that it was in .*"),
        ("lock", r"it is blocked in train\.py:\d+ \(in hang\)"),
        ("busy", r"it computes in train\.py:\d+ \(in hang\)"),
    ],
)
def test_a_hang_is_told_with_step_and_stack(how: str, does: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("HOW", how))
    words = ("run", "train.py", "--workers", "2", "--strategy", "allreduce:shares=equal")
    said = tmp_path / "said"
    with said.open("w") as out:
        process = start(*words, cwd=tmp_path, out=out)
    try:
        end = time.monotonic() + SECONDS
        while not (tmp_path / "hangs").exists():
            assert process.poll() is None, said.read_text()
            end = time.monotonic() + SECONDS
            time.sleep(0.05)
        while not (found := LINE.search(said.read_text())):
            assert time.monotonic() < end, said.read_text()
            time.sleep(0.1)
        step, seconds, told, stacks = found.groups()
        assert 50 <= int(step) <= 60
        assert int(seconds) <= 15
        assert re.fullmatch(does, told)
        text = Path(tmp_path, stacks).read_text()
        assert "worker 0 on here" in text
        assert re.search(r"it waits for others\n    phalanx/sync/", text)
        assert "train.py:" in text.partition("worker 1 on here")[2]
        (notes,) = tmp_path.glob("runs/*/notes.jsonl")
        assert found[0].partition(" (stacks")[0] in notes.read_text()  # for whoever watches it
        assert '"kind":"alert"' in notes.read_text()
    finally:
        process.kill()  # its workers end with it
        process.wait(10)
