"""Launchers: sibling ways to start the workers of a run, behind one small interface.

``prepare`` is the dry run: its :class:`Launch` says exactly what ``start`` will start, and is
what ``launch.json`` holds. Only what cannot be known before (the number of the descriptor of the
shared memory, the clock reading, the controller's process id) is added at the start.
"""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from phalanx.core import settings
from phalanx.core.registry import Registry
from phalanx.core.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.plan.plan import Plan, PlannedMachine, Slot


class WorkerCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: what is started, where, and what its environment gains."""

    rank: int
    machine: str
    argv: list[str]
    env: dict[str, str]
    """Only what we add; the rest is the controller's own environment, which is never stored."""
    cpus: list[int]
    threads: int
    log: str
    """Relative to the run folder."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run starts, as stored in ``launch.json``."""

    run: str
    command: list[str]
    """The user's own command line."""
    script: str
    arguments: list[str]
    launcher: str
    settings: RunSettings
    started_wall: float
    versions: dict[str, str]
    workers: list[WorkerCommand]
    resumes: str | None = None
    """The run and the checkpoint that this one goes on from."""

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @staticmethod
    def from_json(text: bytes | str) -> Launch:
        return msgspec.json.decode(text, type=Launch)


@dataclass(frozen=True)
class Job:
    """What is asked for: a script, what it is given, and the plan it follows."""

    script: Path
    arguments: list[str]
    settings: RunSettings
    plan: Plan
    launcher: str
    command: list[str]
    resumes: str | None = None


def never() -> bool:
    return False


class Launcher(Protocol):
    """Starts the workers of one run, once, and ends them."""

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        """What ``start`` would start; touches nothing."""

    def start(self, launch: Launch, paths: RunPaths) -> None:
        """Start every worker. The calling thread has to live as long as they do."""

    def poll(self) -> dict[int, int]:
        """The exit codes of the ranks that have ended; minus the signal's number if killed."""

    def stop(self, grace: float, hurry: Callable[[], bool] = never) -> None:
        """Ask the workers to stop, end them after ``grace`` seconds or once ``hurry()``.

        Returns when they are gone, in bounded time; may be called again, and at any moment.
        """

    def processes(self) -> list[int]:
        """The process ids of the workers that run now."""


LAUNCHERS = Registry(
    "launcher",
    {
        "local": "phalanx.launch.local:LocalLauncher",
        "inprocess": "phalanx.launch.inprocess:InProcessLauncher",
    },
)


def describe_launch(job: Job, paths: RunPaths, workers: list[WorkerCommand]) -> Launch:
    return Launch(
        run=paths.id,
        command=list(job.command),
        script=str(job.script),
        arguments=list(job.arguments),
        launcher=job.launcher,
        settings=job.settings,
        started_wall=time.time(),
        versions=installed_versions(),
        workers=sorted(workers, key=lambda worker: worker.rank),
        resumes=job.resumes,
    )


def slots_of(plan: Plan) -> list[tuple[PlannedMachine, Slot]]:
    return [(machine, slot) for machine in plan.machines for slot in machine.slots]


def worker_variables(
    job: Job, paths: RunPaths, machine: PlannedMachine, slot: Slot
) -> dict[str, str]:
    """The variables that tell a worker who it is."""
    return {
        settings.RANK: str(slot.rank),
        settings.WORKERS: str(job.plan.workers),
        settings.RUN_FOLDER: str(paths.folder.absolute()),
        settings.MACHINE: machine.name,
        settings.SETTINGS: job.settings.to_json(),
        settings.DEVICE: slot.device,
    }


def log_name(paths: RunPaths, rank: int) -> str:
    return str(paths.log_of(rank).relative_to(paths.folder))


def installed_versions() -> dict[str, str]:
    """Versions that results depend on, read without importing anything heavy."""
    versions = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for shown, distribution in (
        ("phalanx", "phalanx-train"),
        ("torch", "torch"),
        ("numpy", "numpy"),
    ):
        try:
            versions[shown] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
