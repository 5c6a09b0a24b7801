"""Runs of the real command line on machines of a lab, watched from inside the machines too."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import PHALANX

from phalanx.lab.lab import Lab

AFTERWARDS = 10.0
"""Seconds after the end of a run when nothing of it may be left on any machine."""
OURS = re.compile(r"\bsshd\b|first_process|(^|/)ps -eww")
"""What is always on a machine: its first process, the server, and the one who looks."""
TRAINING = """
import sys
import torch
from torch import nn
import phalanx

train, test = phalanx.data.load("digits")
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
print("arguments", ascii(sys.argv[1:]), flush=True)
phalanx.fit(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss=nn.CrossEntropyLoss(), train=train, test=test, epochs=2, batch=64)
"""


@dataclass(frozen=True)
class Ended:
    code: int
    text: str
    """All that it said, both streams, at 80 columns."""

    @property
    def words(self) -> str:
        """As one line: the terminal's own line breaks do not matter."""
        return " ".join(self.text.split())


class Running:
    """A command that goes on; what it says is in a file, so that nobody has to read along."""

    def __init__(self, words: list[str], cwd: Path, variables: Mapping[str, str]) -> None:
        number = len(list(cwd.parent.glob("said-*")))
        self._said = cwd.parent / f"said-{number}"
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(
                words,
                cwd=cwd,
                env={**os.environ, "COLUMNS": "80", **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self._said.read_text(errors="replace")

    def until(self, pattern: str, limit: float = 90.0) -> None:
        """Wait for it to be said."""
        end = time.monotonic() + limit
        while not re.search(pattern, self.text):
            assert self.process.poll() is None, f"ended before {pattern!r}:\n{self.text}"
            assert time.monotonic() < end, f"never said {pattern!r}:\n{self.text}"
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, limit: float = 60.0) -> Ended:
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit} s:\n{self.text}") from None
        print(f"\n{self.text}\nexit {code}")  # for whoever reads along
        return Ended(code, self.text)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


class Bench:
    """A lab, its blueprint, a project, and a folder of runs."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.runs, self.project = folder / "runs", folder / "project"
        self.project.mkdir(parents=True, exist_ok=True)
        (self.project / "train.py").write_text(TRAINING)
        self.pool = folder / "pool.yaml"
        lab.write_blueprint(self.pool)
        self._running: list[Running] = []

    def start(self, *words: str, **variables: str) -> Running:
        """``phalanx WORDS`` in the project's folder."""
        running = Running(
            [*PHALANX, *words], self.project, {"PHALANX_RUNS": str(self.runs), **variables}
        )
        self._running.append(running)
        return running

    def train(self, *words: str, machines: str = "m1,m2", epochs: int = 2000) -> Running:
        """A run that does not end by itself, unless told to after a few epochs."""
        common = ["--pool", str(self.pool), "--machines", machines, "--epochs", str(epochs)]
        return self.start("run", "train.py", *common, *words)

    def do(self, *words: str, limit: float = 120.0, **variables: str) -> Ended:
        return self.start(*words, **variables).end(limit)

    def summary(self) -> dict[str, Any]:
        """Of the latest run."""
        found: dict[str, Any] = json.loads((self.latest() / "summary.json").read_text())
        return found

    def latest(self) -> Path:
        return max(
            (path for path in self.runs.iterdir() if path.is_dir()),
            key=lambda path: path.stat().st_ctime_ns,
        )

    def blueprint(self, **changes: Mapping[str, Any]) -> Path:
        """Another one, with fields of machines changed, or removed (``None``)."""
        lines = []
        for line in self.pool.read_text().splitlines():
            name, colon, rest = line.strip().partition(": ")
            if colon and name in changes:
                fields = {**json.loads(rest), **changes[name]}
                kept = {field: value for field, value in fields.items() if value is not None}
                line = f"  {name}: {json.dumps(kept)}"
            lines.append(line)
        path = self.folder / f"pool-{len(list(self.folder.glob('pool-*')))}.yaml"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o600)
        return path

    def close(self) -> None:
        for running in self._running:
            running.stop()


def processes(lab: Lab, machine: str) -> dict[int, str]:
    """The machine's own process table, without what is always there."""
    said = subprocess.run(
        lab.command(machine, ["ps", "-ewwo", "pid=,args="]),
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    ).stdout
    rows = (line.strip().split(None, 1) for line in said.splitlines() if line.strip())
    return {int(pid): args for pid, args in rows if not OURS.search(args)}


def agents(lab: Lab, machine: str) -> list[int]:
    """The guardian, and the agent that is its child, in this order."""
    return sorted(pid for pid, args in processes(lab, machine).items() if "phalanx-agent" in args)


def kill_in(lab: Lab, machine: str, pid: int, number: str = "KILL") -> None:
    subprocess.run(lab.command(machine, ["kill", f"-{number}", str(pid)]), check=True, timeout=20)


def nothing_left(lab: Lab, *machines: str) -> None:
    """The machines are empty soon; an error when that takes longer than it may."""
    end = time.monotonic() + AFTERWARDS
    while left := {name: found for name in machines if (found := processes(lab, name))}:
        assert time.monotonic() < end, f"left after {AFTERWARDS:.0f} s: {left}"
        time.sleep(0.2)


@contextmanager
def cut(lab: Lab, machine: str) -> Iterator[None]:
    lab.cut(machine)
    try:
        yield
    finally:
        lab.heal(machine)
