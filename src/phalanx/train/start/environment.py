"""Finds out how this worker was started: by Phalanx, by a cluster's launcher, or alone."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from phalanx.core import context, settings
from phalanx.core.errors import InputError, MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.sync.arena.arena import Arena
from phalanx.sync.arena.clock import Clock, MonotonicClock
from phalanx.sync.arena.shm_arena import ShmArena

if TYPE_CHECKING:
    from phalanx.sync.arena.memory_arena import Hub, ThreadArena
    from phalanx.sync.arena.remote.remote_arena import RemoteArena
    from phalanx.train.start.launcher_env import Seat

# Modules that find and join other machines are imported where they are called: a local worker has
# no use for them, and importing them takes long.


@dataclass(frozen=True)
class Environment:
    """One worker's place in the run; ``paths`` is ``None`` outside a run."""

    rank: int = 0
    workers: int = 1
    machine: str = "here"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    paths: RunPaths | None = None
    settings: RunSettings = field(default_factory=RunSettings)
    started: float | None = None
    arena: Arena | None = None
    thread: bool = False
    process: int | None = None
    """The launcher's number of this process, where that is not the rank."""
    clock: Clock = field(default_factory=MonotonicClock)
    """The clock of events' times, the same on all machines of a run."""
    data: Path | None = None
    """Where the data are on this machine, if that was given."""
    skew: float = 0.0
    """Seconds that this machine's wall clock is ahead of the controller's."""
    virtual: ThreadArena | None = None
    """The arena that counts virtual time, if the cluster is only simulated."""
    stop_seconds: float = 2.0
    """Seconds that a worker has to stop in good order; after them its script is interrupted."""

    @property
    def launched(self) -> bool:
        return self.paths is not None


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The numbers by which ``mallopt`` knows two of its settings."""
_MOST_KEPT = 512 << 20


@cache
def keep_freed_memory() -> None:
    """Let the C library keep the memory that a step frees, for the next step. By default it returns
    blocks of some megabytes to the system, which zeroes each page again when it is next used; that
    took a fifth of the step of a small CNN. Blocks above 32 MB are still returned. Settings of the
    user, and C libraries other than glibc, are left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if mallopt is None or tuned or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt(_MMAP_THRESHOLD, 32 << 20)
    mallopt(_TRIM_THRESHOLD, _MOST_KEPT)


def detect() -> Environment:
    """Read this worker's environment from the variables of its thread or its process."""
    keep_freed_memory()
    inside = context.current()
    variables: Mapping[str, str] = inside.environment if inside else os.environ
    if inside is None and variables.get(settings.PROCESS, str(os.getpid())) != str(os.getpid()):
        raise InputError(
            "phalanx.join was called in a process that a worker's script has started",
            "Processes that load data import the script again: let its training begin under "
            "if __name__ == '__main__':",
        )
    if settings.RANK not in variables:
        best = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        alone = Environment(device=best, data=_data(variables, RunSettings()))
        return _by_another_launcher(variables) or alone
    rank, workers = int(variables[settings.RANK]), int(variables[settings.WORKERS])
    if workers > 1 and inside is None and settings.ARENA not in variables:
        return _across_machines(variables)
    started, chosen = variables.get(settings.STARTED), _settings(variables)
    virtual: ThreadArena | None = inside.hub.arena(rank) if inside and chosen.virtual else None
    return Environment(
        rank=rank,
        workers=workers,
        machine=variables.get(settings.MACHINE, "here"),
        device=_device(variables.get(settings.DEVICE, "cpu")),
        paths=RunPaths(Path(variables[settings.RUN_FOLDER])),
        settings=chosen,
        started=float(started) if started and virtual is None else None,
        clock=virtual.pace if virtual else MonotonicClock(),
        virtual=virtual,
        arena=_arena(inside.hub if inside else None, variables, rank, workers),
        thread=inside is not None,
        data=_data(variables, chosen),
        stop_seconds=_stop_seconds(variables),
        skew=float(variables.get(settings.SKEW, "0")),
    )


def saves_checkpoints(environment: Environment) -> bool:
    chosen = environment.settings
    asked = chosen.checkpoint_epochs or chosen.checkpoint_minutes
    return environment.paths is not None and bool(asked)


def between_machines(environment: Environment) -> bool:
    """Whether some of the workers are on other machines."""
    return environment.arena is not None and environment.arena.hosts is not None


def _across_machines(variables: Mapping[str, str]) -> Environment:
    """Return the environment of a worker that Phalanx started on one of several machines."""
    from phalanx.train.start.launcher_env import own_seat

    seat, chosen = own_seat(variables), _settings(variables)
    assert seat is not None
    device = _device(variables.get(settings.DEVICE, "cpu"))
    found = _seated(seat, variables, chosen, lambda _arena: device)
    if found.rank != seat.process:
        raise MachineError(
            f"{seat.machine}: worker {seat.process} became worker {found.rank}",
            "Two runs may share an address and a key; start this one again.",
        )
    return found


def _settings(variables: Mapping[str, str]) -> RunSettings:
    return RunSettings.from_json(variables.get(settings.SETTINGS, "{}"))


def _data(variables: Mapping[str, str], chosen: RunSettings) -> Path | None:
    told = variables.get(settings.DATA) or chosen.data
    return Path(told) if told else None


def _stop_seconds(variables: Mapping[str, str]) -> float:
    """Return ``stop_seconds``: the launcher's grace, less a second to report the end."""
    given = variables.get(settings.GRACE)
    return max(0.5, float(given) - 1.0) if given else Environment.stop_seconds


def _by_another_launcher(variables: Mapping[str, str]) -> Environment | None:
    from phalanx.train.start.launcher_env import seat_of, settings_of

    seat = seat_of(variables, os.uname().nodename)
    if seat is None:
        return None
    from phalanx.train.start.joining_hosts import device_of

    return _seated(seat, variables, settings_of(variables), device_of)


def _seated(
    seat: Seat,
    variables: Mapping[str, str],
    chosen: RunSettings,
    device: Callable[[RemoteArena], torch.device],
) -> Environment:
    from phalanx.train.start.joining_hosts import run_folder, take_seat

    paths = run_folder(seat, variables)
    paths.make()
    arena, started = take_seat(seat), variables.get(settings.STARTED)
    assert arena.hosts is not None
    before = time.monotonic() - float(started) if started else None
    return Environment(
        rank=arena.rank,
        workers=arena.workers,
        machine=arena.hosts.machine,
        device=device(arena),
        paths=paths,
        settings=chosen,
        started=None if before is None else arena.clock.now() - before,
        arena=arena if arena.workers > 1 else None,
        process=seat.process,
        clock=arena.clock,
        data=_data(variables, chosen),
        stop_seconds=_stop_seconds(variables),
        skew=float(variables.get(settings.SKEW, "0")),
    )


def _arena(hub: Hub | None, variables: Mapping[str, str], rank: int, workers: int) -> Arena | None:
    if workers == 1:
        return None
    if hub is not None:
        return hub.arena(rank)
    return _process_arena(int(variables[settings.ARENA]), rank, workers)


@cache
def _process_arena(descriptor: int, rank: int, workers: int) -> ShmArena:
    """Return the one arena of this process: a script may train several models in turn."""
    return ShmArena(descriptor, rank, workers)


def _device(name: str) -> torch.device:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(
            f"the plan gives this worker {name}, but torch sees no GPU here",
            "Check the driver and the torch build (phalanx doctor), or use --machines cpus.",
        )
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # otherwise code that names no device would use the first GPU
    return device
