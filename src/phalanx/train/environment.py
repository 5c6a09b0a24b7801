"""Where this worker finds itself: started by Phalanx, by a cluster's launcher, or alone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from phalanx.core import context, settings
from phalanx.core.errors import InputError
from phalanx.core.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.sync.clock import Clock, MonotonicClock
from phalanx.sync.transport.arena import Arena
from phalanx.sync.transport.memory import Hub
from phalanx.sync.transport.shm import ShmArena
from phalanx.train.foreign import seat_of, settings_of
from phalanx.train.hosts import device_of, run_folder, take_seat


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
    """For stamps of what happens: the same on all machines of a run."""

    @property
    def launched(self) -> bool:
        return self.paths is not None


def detect() -> Environment:
    """Read this worker's variables (its thread's, or its process's)."""
    inside = context.current()
    variables: Mapping[str, str] = inside.environment if inside else os.environ
    if settings.RANK not in variables:
        return _by_another_launcher(variables) or Environment(device=_best_device())
    rank, workers = int(variables[settings.RANK]), int(variables[settings.WORKERS])
    started = variables.get(settings.STARTED)
    return Environment(
        rank=rank,
        workers=workers,
        machine=variables.get(settings.MACHINE, "here"),
        device=_device(variables.get(settings.DEVICE, "cpu")),
        paths=RunPaths(Path(variables[settings.RUN_FOLDER])),
        settings=RunSettings.from_json(variables.get(settings.SETTINGS, "{}")),
        started=float(started) if started else None,
        arena=_arena(inside.hub if inside else None, variables, rank, workers),
        thread=inside is not None,
    )


def _by_another_launcher(variables: Mapping[str, str]) -> Environment | None:
    seat = seat_of(variables, os.uname().nodename)
    if seat is None:
        return None
    chosen, paths = settings_of(variables), run_folder(seat, variables)
    paths.make()
    arena, started = take_seat(seat), variables.get(settings.STARTED)
    assert arena.hosts is not None
    before = time.monotonic() - float(started) if started else None
    return Environment(
        rank=arena.rank,
        workers=arena.workers,
        machine=arena.hosts.machine,
        device=device_of(arena),
        paths=paths,
        settings=chosen,
        started=None if before is None else arena.clock.now() - before,
        arena=arena if arena.workers > 1 else None,
        process=seat.process,
        clock=arena.clock,
    )


def _arena(hub: Hub | None, variables: Mapping[str, str], rank: int, workers: int) -> Arena | None:
    if workers == 1:
        return None
    if hub is not None:
        return hub.arena(rank)
    return _process_arena(int(variables[settings.ARENA]), rank, workers)


@cache
def _process_arena(descriptor: int, rank: int, workers: int) -> ShmArena:
    """One per process: a script may train several models, one after another."""
    return ShmArena(descriptor, rank, workers)


def _best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _device(name: str) -> torch.device:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(
            f"the plan gives this worker {name}, but torch sees no GPU here",
            "Check the driver and the torch build (phalanx doctor), or use --machines cpus.",
        )
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # else whatever names no device would open the first GPU too
    return device
