"""Launchers: different ways to start the workers of a run, behind one small interface.

A dry run calls only ``open`` and ``prepare``, which returns a :class:`Launch`: what ``start``
starts, and what ``launch.json`` holds. Only values that are unknown until then (the descriptor of
the shared memory, the clock reading, the controller's process id) are added at the start.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from phalanx.core import settings
from phalanx.core.errors import InputError, MachineError
from phalanx.core.files import read_bounded
from phalanx.core.registry import Registry
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import OURS, SPARK_SYSTEM, RunSettings
from phalanx.core.terminal import Say
from phalanx.launch.frameworks import deciding
from phalanx.launch.frameworks.framework import Framework
from phalanx.launch.frameworks.seating import roles_by_rank
from phalanx.launch.shipping.requirements import DISTRIBUTION, installed
from phalanx.observe.machines.monitor import Monitor
from phalanx.plan.plan import Plan, PlannedMachine, Slot
from phalanx.pool.machine import Machine


class WorkerCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: what is started, where, and which variables its environment gets."""

    rank: int
    machine: str
    argv: list[str]
    env: dict[str, str]
    """Only the variables that we add; the controller's own environment is never stored."""
    cpus: list[int]
    threads: int
    log: str  # relative to the run's folder
    role: str = ""
    """Role of a process of another framework: worker, chief or ps."""


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
    """The run and the checkpoint from which this one continues."""
    pool: str | None = None
    """The blueprint, if there is one."""
    framework: Framework | None = None
    system: str = OURS
    decides: list[int] = []
    """The ranks of another framework whose end ends the run; empty with our own workers."""
    joins: bool = True
    """Whether the workers have to join the training through Phalanx, not through a framework."""
    batch_script: str = ""
    """The batch script for a cluster's manager, if the manager starts the workers."""
    cluster: str = ""
    """The options or the address for a cluster's manager: see ``Fleet``."""

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @staticmethod
    def from_json(text: bytes | str) -> Launch:
        return msgspec.json.decode(text, type=Launch)


@dataclass(frozen=True)
class Job:
    """A request for a run: a script, its arguments, and the plan that it follows."""

    script: Path
    arguments: list[str]
    settings: RunSettings
    plan: Plan
    launcher: str
    command: list[str]
    resumes: str | None = None
    fleet: Fleet = field(default_factory=lambda: Fleet())
    framework: Framework | None = None
    """The framework of the script; ``None`` if it is ours."""


@dataclass(frozen=True)
class Fleet:
    """The machines of a run, with their logins, which are never stored, and options for them."""

    machines: tuple[Machine, ...] = ()
    servers: tuple[str, ...] = ()  # names of machines with a parameter server and no worker
    pool: Path | None = None
    """The blueprint of the machines."""
    tls: bool = False
    data: Path | None = None
    """A folder of this machine that is sent to all of them."""
    ship_limit: int | None = None
    """Most bytes of the project's folder that are sent; ``None``: the default."""
    follow_links: bool = False
    """Whether links to files that are not sent are replaced by those files."""
    detach: bool = False
    workers: int | None = None
    """How many workers were asked for; the plan says how many there are."""
    cluster: str = ""
    """Options for Slurm, or the address of a cluster of Ray or Spark."""


def read_launch(paths: RunPaths) -> tuple[Launch, Plan]:
    """Read from its folder how a run was started; ``core/run_folder/trust.py``: who wrote it."""
    try:
        launch = Launch.from_json(read_bounded(paths.launch))
        return launch, Plan.from_json(read_bounded(paths.plan))
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"cannot read how '{paths.id}' was started: {error}") from None


STOP_SECONDS = 10.0
"""Seconds from the request to stop until a worker is killed: enough to write a checkpoint."""


def never() -> bool:
    return False


class Launcher(Protocol):
    """Starts the workers of one run, once, and ends them."""

    def open(
        self, job: Job, paths: RunPaths, say: Say, asked: Callable[[], bool], *, dry: bool = False
    ) -> Job:
        """Look at the machines before anything is decided; return the job as they can do it.

        Raises ``RunStopped`` soon after ``asked()`` is true. ``dry``: nothing will be started.
        """
        return job

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        """Return what ``start`` starts, for the job that ``open`` returned; touch nothing."""
        ...

    def start(self, launch: Launch, paths: RunPaths) -> None:
        """Start every worker, or begin to. The calling thread has to outlive the workers."""
        ...

    def poll(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have ended; minus the signal's number if killed.

        Raises a ``PhalanxError`` when the run cannot go on, for a reason other than a worker's end.
        """
        ...

    def codes(self) -> dict[int, int]:
        """Return the same as ``poll``, also for a run that cannot go on."""
        return self.poll()

    def lost(self) -> dict[int, MachineError]:
        """Return ranks that were lost with their machine, while the others go on without them."""
        return {}

    def away(self) -> dict[int, MachineError]:
        """Return the ranks whose machine does not answer now, but may answer again."""
        return {}

    def alone(self) -> MachineError | None:
        """Return why the controller should leave the workers to go on alone; else ``None``."""
        return None

    def news(self) -> list[str]:
        """Return what the launcher has to say since the last call: progress, warnings."""
        return []

    def detached(self) -> bool:
        """Whether all workers are started and go on without the controller, which may leave."""
        return False

    def leave(self) -> None:
        """Disconnect, and let the workers go on in a detached run."""

    def stop(self, grace: float, hurry: Callable[[], bool] = never) -> None:
        """Ask the workers to stop; kill those left after ``grace`` seconds or once ``hurry()``.

        Returns when they are gone, in bounded time; may be called again, and at any moment.
        """
        ...

    def finish(self, say: Say, hurry: Callable[[], bool]) -> None:
        """Fetch the files that the workers left, and clean up; errors here do not fail the run."""

    def processes(self) -> list[int]:
        """Return the process ids of the workers that run on this machine now."""
        return []

    def monitors(self, launch: Launch, paths: RunPaths) -> list[Monitor]:
        """Return the readers of this machine's usage, which run as long as the run does."""
        names = dict.fromkeys(worker.machine for worker in launch.workers)
        return [Monitor(name, paths.machine(name), self.processes) for name in names]


LAUNCHERS = Registry(
    "launcher",
    {
        "local": "phalanx.launch.launchers.local:LocalLauncher",
        "inprocess": "phalanx.launch.launchers.inprocess:InProcessLauncher",
        "ssh": "phalanx.launch.launchers.ssh:SshLauncher",
        "slurm": "phalanx.launch.cluster.slurm:SlurmLauncher",
        "ray": "phalanx.launch.cluster.ray_launcher:RayLauncher",
        "spark": "phalanx.launch.cluster.spark_launcher:SparkLauncher",
    },
)


def describe_launch(job: Job, paths: RunPaths, workers: list[WorkerCommand]) -> Launch:
    framework = job.framework
    roles = roles_by_rank(framework, len(workers)) if framework else []
    # The versions on which results depend, read without importing anything heavy.
    versions = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    found = installed((DISTRIBUTION, "torch", "numpy"))
    return Launch(
        run=paths.id,
        command=list(job.command),
        script=str(job.script),
        arguments=list(job.arguments),
        launcher=job.launcher,
        settings=job.settings,
        started_wall=time.time(),
        versions=versions | {n.removesuffix("-train"): version for n, version in found.items()},
        workers=sorted(workers, key=lambda worker: worker.rank),
        resumes=job.resumes,
        pool=str(job.fleet.pool.resolve()) if job.fleet.pool else None,
        framework=framework,
        system=system_of(job),
        decides=deciding(roles),
        joins=framework is None,
        cluster=job.fleet.cluster,
    )


def system_of(job: Job) -> str:
    """Return the name of the system in reports."""
    if job.framework is not None:
        return job.framework.system
    return job.settings.keras or (SPARK_SYSTEM if job.launcher == "spark" else OURS)


def worker_variables(job: Job, folder: str, machine: PlannedMachine, slot: Slot) -> dict[str, str]:
    """Return a worker's variables; ``folder`` is the run's folder on the worker's machine."""
    return {
        settings.RANK: str(slot.rank),
        settings.WORKERS: str(job.plan.workers),
        settings.RUN_FOLDER: folder,
        settings.MACHINE: machine.name,
        settings.SETTINGS: job.settings.to_json(),
        settings.DEVICE: slot.device,
        settings.GRACE: f"{STOP_SECONDS:g}",
    }


def worker_command(
    job: Job,
    folder: str,
    machine: PlannedMachine,
    slot: Slot,
    *,
    python: str = sys.executable,
    script: str = "",
) -> WorkerCommand:
    """Return the command of one of our workers; ``folder`` is the run's folder on its machine."""
    bootstrap = [python, "-P", "-m", "phalanx.launch.worker.bootstrap"]
    return WorkerCommand(
        rank=slot.rank,
        machine=machine.name,
        argv=[*bootstrap, script or str(job.script), *job.arguments],
        env={**worker_variables(job, folder, machine, slot), **_process_variables(job, slot)},
        cpus=list(slot.cpus),
        threads=slot.threads,
        log=log_name(slot.rank),
    )


def _process_variables(job: Job, slot: Slot) -> dict[str, str]:
    """Return variables for a worker process: cores, threads, the order of sets, Keras' backend."""
    hashing = os.environ.get(settings.HASHING, "")
    # Use the backend that was asked for, else this shell's, which other machines do not know.
    shell, keras = os.environ.get(settings.KERAS_BACKEND), job.settings.keras or ""
    backend = settings.KERAS_SYSTEMS.get(keras, shell)
    return {
        # All workers get one order of sets, so that a list made of one is the same everywhere.
        settings.HASHING: hashing if hashing.isdigit() else str(job.settings.seed % 2**32),
        settings.CPUS: ",".join(map(str, slot.cpus)),
        "PYTHONUNBUFFERED": "1",
        **dict.fromkeys(settings.THREADS, str(slot.threads)),
        **({settings.KERAS_BACKEND: backend} if backend else {}),
    }


def with_own_threads(slot: Slot, environment: Mapping[str, str]) -> Slot:
    """Return the slot with the user's own choice of threads, for any library, if there is one."""
    told = [environment[name] for name in settings.THREADS if environment.get(name, "").isdigit()]
    threads = next((int(number) for number in told if int(number) > 0), slot.threads)
    return msgspec.structs.replace(slot, threads=threads)


def log_name(rank: int) -> str:
    """Return the name of a log, relative to the run's folder."""
    return str(RunPaths(Path()).log_of(rank))
