"""A command line in this process, and a script that pretends to train (without torch: quick)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from launch_support import start_without_torch

from phalanx.cli.main import invoke

TRAINING = '''
"""Writes the events that phalanx.fit would write."""
import os, sys, time
from pathlib import Path
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.observe.events import event_types as ev

rank, workers = int(os.environ["PHALANX_RANK"]), int(os.environ["PHALANX_WORKERS"])
paths = RunPaths(Path(os.environ["PHALANX_RUN"]))
settings = RunSettings.from_json(os.environ["PHALANX_SETTINGS"])
if "for real" in sys.argv:
    import phalanx
    phalanx.fit()
clock, epochs = time.monotonic, settings.epochs or 2

def tell(event):
    with paths.events_of(rank).open("ab") as file:
        file.write(ev.encode(event))

tell(ev.Joined(time=clock(), wall=time.time(), rank=rank, workers=workers, machine="here",
               pid=os.getpid(), device="cpu", threads=1, precision="float32",
               strategy=settings.strategy, parameters=1, seed=settings.seed, versions={},
               notes=["rate divided by the workers"]))
tell(ev.Planned(time=clock(), rank=rank, epochs=epochs, samples=20 * workers, batch=10))
print("words:", sys.argv[1:], flush=True)
if f"fail-{settings.strategy}" in sys.argv:
    raise ValueError("as asked")
while "hang" in sys.argv:
    time.sleep(0.05)
for epoch in range(epochs):
    step = {name: [0.001] for name in
            ("input", "compute", "send", "wait", "reduce", "update", "settle")}
    tell(ev.Steps(rank=rank, epoch=epoch, first=epoch, began=[clock() - 0.007], samples=[20],
                  staleness=[0], loss=[0.5], **step))
    tell(ev.EpochDone(time=clock(), rank=rank, epoch=epoch, seconds=0.007, samples=20,
                      train_loss=0.5, train_accuracy=0.8, rate=0.1))
    if rank == 0:
        tell(ev.Logged(time=clock(), rank=0, epoch=epoch, values={"test_accuracy": 0.75}))
tell(ev.PhaseDone(time=clock(), rank=rank, phase="train", seconds=0.1))
tell(ev.Finished(time=clock(), rank=rank, status="done", bytes_sent=0, peak_memory=0))
'''


@dataclass(frozen=True)
class Answer:
    """What a command line printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of stdout."""
        answer: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return answer

    @property
    def errors(self) -> list[str]:
        return self.err.splitlines()


class Shell:
    """``shell("runs", "--json")``, in a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self._capsys = capsys

    def __call__(self, *words: str) -> Answer:
        self._capsys.readouterr()
        code = invoke(words)
        printed = self._capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    def script(self, text: str = TRAINING, name: str = "train.py") -> str:
        (self.folder / name).write_text(text)
        return name


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHALANX_DEBUG", raising=False)
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "80")
    start_without_torch(monkeypatch)
    return Shell(tmp_path, capsys)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have no figures, whose drawing takes seconds; ``tests/unit/report`` has them."""

    def nothing(self: Any, target: Any, *, format: str, **_: object) -> None:
        target.write("<svg></svg>" if format == "svg" else b"")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", nothing)
