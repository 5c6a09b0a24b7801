"""The files of a run as a summary needs them; mistakes in them are no errors.

A run may have been stopped before a file was written, or while it was: whatever is missing or
broken reads as "unknown". The full structures belong to the packages that write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from phalanx.core.files import read_bounded, read_lines
from phalanx.core.run_folder.run_paths import RunPaths, beside
from phalanx.core.settings import OUR_SYSTEMS, OURS, RunSettings
from phalanx.observe.events.event_types import Joined, MachineSample
from phalanx.observe.events.timeline import RankLog, read_ranks


class SlotRecord(msgspec.Struct, kw_only=True):
    rank: int = 0


class MachineRecord(msgspec.Struct, kw_only=True):
    name: str = ""
    cores: int = 0
    slots: list[SlotRecord] = []
    emulated: bool = False


class PlanRecord(msgspec.Struct, kw_only=True):
    """``plan.json``: the plan of the run."""

    strategy: str | None = None
    workers: int | None = None
    batch: int | None = None
    machines: list[MachineRecord] = []
    predicted: dict[str, float | None] = {}


class WorkerRecord(msgspec.Struct, kw_only=True):
    rank: int = 0
    machine: str = ""
    role: str = ""


class LaunchRecord(msgspec.Struct, kw_only=True):
    """``launch.json``: what was started."""

    command: list[str] = []
    script: str | None = None
    arguments: list[str] = []
    launcher: str | None = None
    settings: RunSettings | None = None
    started_wall: float | None = None
    versions: dict[str, str] = {}
    workers: list[WorkerRecord] = []
    resumes: str | None = None
    system: str = OURS

    @property
    def ours(self) -> bool:
        return self.system in OUR_SYSTEMS


class ControllerRecord(msgspec.Struct, kw_only=True):
    """``controller.json``: the controller's process; with ``created``, as ids are used again."""

    pid: int = 0
    created: float = 0.0


class StudyRecord(msgspec.Struct, kw_only=True):
    """``study.json``: the runs that are compared."""

    study: str = ""
    command: list[str] = []
    runs: list[str] = []
    script: str | None = None
    started_wall: float | None = None
    repeat: int = 1
    failures: dict[str, str] = {}
    """Reasons why runs have no result, by id."""


T = TypeVar("T")


def read_record(path: Path, kind: type[T]) -> T | None:
    """Return the record in ``path``; ``None`` if it is missing or broken. Too large is an error."""
    try:
        return msgspec.json.decode(read_bounded(path), type=kind)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def study_folders(paths: RunPaths, record: StudyRecord) -> list[RunPaths]:
    """Return the folders of a study's runs; all lie beside it, so other paths are left out."""
    return [run for name in record.runs if (run := beside(paths, name)) is not None]


def read_samples(paths: RunPaths) -> dict[str, list[MachineSample]]:
    """Return the readings of every machine that was monitored, by its name."""
    if not paths.machines.is_dir():
        return {}
    files = sorted(file for file in paths.machines.glob("*.jsonl") if file.is_file())
    return {file.stem: list(_samples(file)) for file in files}


def _samples(path: Path) -> Iterator[MachineSample]:
    decoder = msgspec.json.Decoder(MachineSample)
    for line in read_lines(path):
        try:
            if line is not None:
                yield decoder.decode(line)
        except (msgspec.DecodeError, RecursionError):
            continue


@dataclass(frozen=True)
class RunFiles:
    """All files of one run, as they were read."""

    paths: RunPaths
    plan: PlanRecord
    launch: LaunchRecord
    settings: RunSettings | None
    ranks: list[RankLog]
    samples: dict[str, list[MachineSample]]

    @property
    def helpers(self) -> set[int]:
        """The ranks of parameter servers, and of TensorFlow's chief and evaluator."""
        return {w.rank for w in self.launch.workers if w.role not in ("", "worker")}

    @property
    def joined(self) -> list[Joined]:
        return [log.joined for log in self.ranks if log.joined]

    @property
    def strategy(self) -> str | None:
        if self.settings:
            return self.settings.strategy
        return self.plan.strategy or (self.joined[0].strategy if self.joined else None)

    @property
    def workers(self) -> int | None:
        told = self.plan.workers or len(self.launch.workers) or len(self.ranks)
        return (self.joined[0].workers if self.joined else told) or None


def read_run(paths: RunPaths) -> RunFiles:
    """Read the files of a run, whichever of them exist."""
    launch = read_record(paths.launch, LaunchRecord) or LaunchRecord()
    return RunFiles(
        paths=paths,
        plan=read_record(paths.plan, PlanRecord) or PlanRecord(),
        launch=launch,
        settings=launch.settings,
        ranks=read_ranks(paths),
        samples=read_samples(paths),
    )
