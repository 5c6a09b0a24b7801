"""The runs that a report is about, read from their folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import mark
from phalanx.observe.summary.run_records import (
    LaunchRecord,
    RunFiles,
    StudyRecord,
    read_record,
    read_run,
    study_folders,
)
from phalanx.observe.summary.run_status import DONE, RUNNING
from phalanx.observe.summary.summary import Summary, read_summary, summarise_files

Getter = Callable[[Summary], float | None]
Key = tuple[str, int | None, int | None, str | None, tuple[str, ...], str]
"""What the repeats of a run have in common: strategy, batch, workers, emulation, machines,
system."""


@dataclass(frozen=True)
class RunData:
    """One run: its summary, and its events and machine readings when they are asked for."""

    paths: RunPaths
    summary: Summary

    @cached_property
    def files(self) -> RunFiles:
        return read_run(self.paths)

    @cached_property
    def launch(self) -> LaunchRecord:
        return read_record(self.paths.launch, LaunchRecord) or LaunchRecord()

    @property
    def done(self) -> bool:
        return self.summary.status == DONE


@dataclass(frozen=True)
class Spread:
    """One quantity over the repeats of a run."""

    values: tuple[float, ...]

    @property
    def middle(self) -> float:
        return median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def width(self) -> float:
        return self.high - self.low


@dataclass(frozen=True)
class RunGroup:
    """The repeats of one strategy with one batch, one number of workers, one emulation."""

    label: str
    strategy: str
    batch: int | None
    workers: int | None
    emulated: str | None
    runs: tuple[RunData, ...]
    system: str = "phalanx"

    @property
    def done(self) -> list[RunData]:
        return [run for run in self.runs if run.done]

    @property
    def shown(self) -> RunData:
        """The run whose details represent the group: the one of median speed."""
        runs = sorted(self.done or self.runs, key=lambda run: train_seconds(run.summary) or 0.0)
        return runs[len(runs) // 2]

    def spread(self, get: Getter) -> Spread | None:
        """Return a quantity over the finished repeats, or over all repeats if none has finished."""
        summaries = [run.summary for run in self.done or self.runs]
        values = tuple(value for s in summaries if (value := get(s)) is not None)
        return Spread(values) if values else None


@dataclass(frozen=True)
class StudyData:
    """What is reported: the runs of a study, or a single run."""

    paths: RunPaths
    title: str
    command: list[str]
    script: str | None
    runs: tuple[RunData, ...]
    started_wall: float | None = None
    missing: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def groups(self) -> list[RunGroup]:
        """The runs, grouped with their repeats, in the order of their first appearance."""
        keys: dict[Key, list[RunData]] = {}
        for run in self.runs:
            s = run.summary
            names = tuple(machine.name for machine in s.machines)
            key = (s.strategy or "unknown", s.batch, s.workers, s.emulated, names, s.system)
            keys.setdefault(key, []).append(run)
        return [
            RunGroup(label, *key[:4], tuple(keys[key]), key[5])
            for key, label in _labels(list(keys)).items()
        ]

    @property
    def repeats(self) -> int:
        return max((len(group.runs) for group in self.groups), default=0)


def train_seconds(summary: Summary) -> float | None:
    """Return the time to compare: that of training, or if that is unknown, of the whole run."""
    train = summary.phases.train
    return summary.seconds if train is None else train


def load_study(paths: RunPaths) -> StudyData:
    """Return the study in ``paths``; a plain run is a study of one run."""
    record = read_record(paths.study, StudyRecord)
    if record is None:
        run = load_run(paths)
        launch = run.launch
        return StudyData(
            paths, paths.id, launch.command, launch.script, (run,), launch.started_wall
        )
    folders = study_folders(paths, record)
    found = tuple(load_run(folder) for folder in folders if folder.folder.is_dir())
    missing = tuple(folder.id for folder in folders if not folder.folder.is_dir())
    return StudyData(
        paths=paths,
        title=record.study or paths.id,
        command=record.command,
        script=record.script,
        runs=found,
        started_wall=record.started_wall,
        missing=missing,
        failures=record.failures,
    )


def load_run(paths: RunPaths) -> RunData:
    """Return the run in ``paths``, with its written summary if that is final, else a new one."""
    summary = read_summary(paths)
    if summary is not None and summary.status != RUNNING:
        return RunData(paths, summary)
    files = read_run(paths)
    run = RunData(paths, summarise_files(files))
    run.__dict__["files"] = files
    return run


def _labels(keys: Sequence[Key]) -> dict[Key, str]:
    """Return labels: the strategy, with batch and workers only if it alone would be ambiguous.

    Emulated runs are always marked, as a figure may be seen without its page. If systems are
    compared, Phalanx is named too; another system's "strategy" is its name already.
    """
    labels = {}
    several_systems = len({key[5] for key in keys}) > 1
    for key in keys:
        strategy, batch, workers, emulated, names, system = key
        alike = [other for other in keys if other[0] == strategy and other[5] == system]
        named = several_systems and system != strategy
        parts = [f"{system} {strategy}" if named else strategy]
        if len({other[1] for other in alike}) > 1:
            parts.append(f"batch {batch}" if batch else "the script's batch")
        if len({other[2] for other in alike}) > 1:
            parts.append(f"{workers or '?'} workers")
        if len({other[4] for other in alike}) > 1 and names:
            parts.append(f"on {', '.join(names)}")
        several = len({other[3] for other in alike if other[3]}) > 1
        note = f" ({mark(emulated)}{': ' + emulated if several else ''})" if emulated else ""
        labels[key] = ", ".join(parts) + note
    return labels
