"""One run as the pages show it."""

from __future__ import annotations

from typing import Any

import msgspec


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened at a moment, drawn into every chart."""

    time: float
    """Seconds since the run began."""
    kind: str
    """``switch``, ``fault``, ``share``, ``alert``, ``checkpoint`` or ``note``."""
    text: str
    rank: int | None = None
    step: float | None = None
    epoch: float | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    done: int
    """Samples trained, those before a resumed run included."""
    total: int | None
    share: float | None
    left_seconds: float | None
    epoch: int
    """The epoch that is trained, from 1."""
    epochs: int | None


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker; its figures are of the last few seconds."""

    rank: int
    machine: str
    device: str
    state: str
    """``starting``, ``training``, ``done``, ``failed``, ``stopped``, ``lost`` or ``ended``."""
    epoch: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    share: float | None = None
    """Its part of the samples of all workers."""
    waiting: float | None = None
    staleness: float | None = None


class MachineRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cores: float | None = None
    workers: list[int] = []
    state: str = "up"
    """``up``, ``lost``, ``ended`` or, in a pool, ``unreachable``."""
    now: dict[str, float | None] | None = None
    """Its newest reading, where machines are shown; null where the kernel does not tell."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """All that a page shows of a run besides charts; what is not known is null."""

    id: str
    title: str
    status: str
    command: list[str]
    script: str | None
    system: str
    settings: dict[str, Any]
    strategy: str | None
    began: float | None
    """Seconds since 1970."""
    seconds: float | None
    progress: Progress
    workers: list[WorkerRow]
    machines: list[MachineRow]
    notes: list[str]
    worth: list[str]
    result: dict[str, float | int | str | None]
    marks: list[Mark]
    building: float | None = None
    """The share of the run's files that has been read; null when all has."""
