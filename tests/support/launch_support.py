"""Jobs of tiny scripts for the launch tests; as a program, a controller to be signalled.

``python launch_support.py SCRIPT RUN_FOLDER WORKERS`` executes SCRIPT and exits like the CLI.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.launch.launcher import Job, Launch
from phalanx.launch.run import controller
from phalanx.launch.run.controller import Observer, RunOutcome, execute
from phalanx.observe.events.event_types import Event
from phalanx.observe.summary.summary import Summary
from phalanx.plan.plan import Plan, PlannedMachine, Slot

PRELUDE = """
import os, signal, sys, time
from pathlib import Path
from phalanx.core.context import current
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.event_types import Finished, Joined, encode

env = current().environment if current() else os.environ
rank = int(env["PHALANX_RANK"])
paths = RunPaths(Path(env["PHALANX_RUN"]))

def tell(event):
    with paths.events_of(rank).open("ab") as file:
        file.write(encode(event))

def join():
    tell(Joined(time=time.monotonic(), wall=time.time(), rank=rank,
                workers=int(env["PHALANX_WORKERS"]), machine=env["PHALANX_MACHINE"],
                pid=os.getpid(), device="cpu", threads=1, precision="float32",
                strategy="allreduce", parameters=1, seed=0, versions={}, notes=[]))
    (paths.files / f"pid-{rank}").write_text(str(os.getpid()))

def finish(status="done"):
    tell(Finished(time=time.monotonic(), rank=rank, status=status, bytes_sent=0, peak_memory=0))
"""


FIGURES: dict[str, Any] = {
    "cpu_percent": 1.0,
    "memory_bytes": 2,
    "network_bytes_per_second": 3.0,
    "workers_cpu_percent": 4.0,
    "workers_memory_bytes": 5,
}
"""Of a machine, without their moment, as its agent tells them."""


def start_without_torch(monkeypatch: pytest.MonkeyPatch, *plugins: str) -> None:
    """Spare workers of torch-free scripts the seconds that importing torch takes."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.setenv("PHALANX_PLUGINS", ",".join(["torch_free", *plugins]))


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    start_without_torch(monkeypatch)


def write_script(folder: Path, body: str, prelude: str = PRELUDE) -> Path:
    script = folder / "train.py"
    script.write_text(prelude + body)
    return script


def make_job(script: Path, workers: int, launcher: str = "local", host: str = "here") -> Job:
    slots = [Slot(rank=rank, cpus=[], threads=1, device="cpu") for rank in range(workers)]
    machine = PlannedMachine(name="here", host=host, cores=2, gpus=0, slots=slots)
    plan = Plan(
        strategy="allreduce",
        selection="all",
        machines=[machine],
        workers=workers,
        batch=None,
        predicted={"seconds": None},
        reasons=[],
    )
    return Job(script, ["--flag", "two words"], RunSettings(), plan, launcher, ["phalanx", "run"])


class Recorder(Observer):
    """Remembers everything it is told."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.events: list[Event] = []
        self.lines: list[tuple[int, str]] = []
        self.failures: list[tuple[int, str]] = []
        self.summaries: list[Summary] = []

    def started(self, launch: Launch) -> None:
        self.launches.append(launch)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def output(self, rank: int, line: str) -> None:
        self.lines.append((rank, line))

    def failure(self, rank: int, line: str) -> None:
        self.failures.append((rank, line))

    def finished(self, summary: Summary) -> None:
        self.summaries.append(summary)


def run(
    folder: Path, body: str, workers: int = 2, launcher: str = "local"
) -> tuple[RunOutcome, Recorder, RunPaths]:
    paths = RunPaths(folder / "run").make()
    recorder = Recorder()
    outcome = execute(make_job(write_script(folder, body), workers, launcher), paths, recorder)
    return outcome, recorder, paths


def alive(pid: int) -> bool:
    """Whether ``pid`` still runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def main() -> int:
    controller.STOP_SECONDS = float(os.environ.get("TEST_GRACE", "1"))
    script, folder, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    outcome = execute(make_job(script, workers), RunPaths(folder).make(), Observer())
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
