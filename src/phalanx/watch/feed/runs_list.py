"""The runs and studies of a folder, newest first: a row each, as the page "Runs" lists them."""

from __future__ import annotations

import functools
import itertools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.collect import LineTail, decoded
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.summary.progress_state import ProgressState
from phalanx.observe.summary.run_records import LaunchRecord, PlanRecord, StudyRecord, read_record
from phalanx.observe.summary.run_status import RUNNING, status_of
from phalanx.observe.summary.summary import read_summary

INSIDE = ":"
"""Between the names of a study and of a run in its folder."""
UNREADABLE = "unreadable"
_TAIL = 1 << 16
_SAME = ("strategy", "workers", "seconds", "epochs", "samples_per_second")
"""A row has these figures as they are in the run's summary."""
_NAME = re.compile(r"(?!\.)[^/\\\x00:]{1,255}")


class UnknownRun(InputError):  # noqa: N818  (what was asked for)
    """There is no run of that id."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run; figures that are not known are null."""

    id: str
    name: str
    script: str | None = None
    system: str = ""
    strategy: str | None = None
    workers: int | None = None
    machines: list[str] = []
    status: str
    began: float | None = None
    """Seconds since 1970."""
    seconds: float | None = None
    epochs: int | None = None
    accuracy: float | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    predicted_samples_per_second: float | None = None
    worth: str | None = None
    study: str | None = None


class StudyRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    script: str | None
    began: float | None
    runs: list[str]


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    runs: list[RunRow]
    studies: list[StudyRow]
    more: bool = False
    """Whether there are older runs than these."""


def find_run(home: Path, run_id: str) -> RunPaths:
    """Return the run ``run_id`` of ``home``, or the run ``STUDY:RUN`` in a study's folder.

    No part of it may be a link, which could lead elsewhere.
    """
    names = run_id.split(INSIDE)
    if len(names) > 2 or not all(map(_NAME.fullmatch, names)):
        raise _unknown(run_id)
    paths = RunPaths(home.joinpath(*names))
    if not _is_run(paths) or paths.folder.is_symlink() or (home / names[0]).is_symlink():
        raise _unknown(run_id)
    return paths


def name_of(run_id: str) -> str:
    """Return a run's name without the time in front."""
    return re.sub(r"^\d{8}-\d{6}-", "", run_id)


def id_of(paths: RunPaths) -> str:
    """Return the id by which ``find_run`` finds a run."""
    study = RunPaths(paths.folder.parent)
    return f"{study.id}{INSIDE}{paths.id}" if study.study.is_file() else paths.id


def list_runs(home: Path, limit: int = 200, before: str | None = None) -> RunList:
    """Return the newest runs, or those older than ``before``."""
    found = {paths.id: paths for paths in _folders(home)}
    studies = [row for paths in found.values() if (row := _study(paths)) is not None]
    belongs = {run: study.id for study in studies for run in study.runs}
    for study in studies:
        inside = {f"{study.id}{INSIDE}{paths.id}": paths for paths in _folders(home / study.id)}
        belongs |= dict.fromkeys(inside, study.id)
        found |= inside
    older = (one for one in sorted(found, reverse=True) if before is None or one < before)
    newest = list(itertools.islice((one for one in older if _is_run(found[one])), limit + 1))
    rows = [
        msgspec.structs.replace(row_of(found[one]), study=belongs.get(one))
        for one in newest[:limit]
    ]
    return RunList(runs=rows, studies=studies, more=len(newest) > limit)


def _folders(home: Path) -> Iterator[RunPaths]:
    """Yield the folders in ``home`` that may be runs."""
    try:
        entries = list(os.scandir(home))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and _NAME.fullmatch(entry.name):
            yield RunPaths(home / entry.name)


def _is_run(paths: RunPaths) -> bool:
    try:
        return paths.launch.is_file() or paths.summary.is_file()
    except (OSError, ValueError):  # a name that is too long, or no text
        return False


def _unknown(run_id: str) -> UnknownRun:
    return UnknownRun(f"there is no run {run_id[:80]!r}", "List the runs: phalanx runs")


def _study(paths: RunPaths) -> StudyRow | None:
    if not paths.study.is_file():
        return None
    try:
        record = read_record(paths.study, StudyRecord) or StudyRecord()
    except InputError:  # longer than Phalanx writes it
        record = StudyRecord()
    began, script = record.started_wall, record.script
    return StudyRow(id=paths.id, script=script, began=began, runs=record.runs)


def row_of(paths: RunPaths) -> RunRow:
    """Return the row of one run; a folder that cannot be read has one, too."""
    try:
        stamp = paths.summary.stat().st_mtime_ns if paths.summary.is_file() else 0
        return _ended_row(paths, stamp) or _live_row(paths)
    except (InputError, OSError):  # a file is longer than Phalanx writes it
        return RunRow(id=id_of(paths), name=name_of(paths.id), status=UNREADABLE)


@functools.lru_cache(maxsize=4096)
def _ended_row(paths: RunPaths, _stamp: int) -> RunRow | None:
    """The row of a run with a summary; it is kept until the summary is written again."""
    found = read_summary(paths)
    if found is None or found.status == RUNNING:
        return None
    accuracies = (found.test_accuracy, found.validation_accuracy, found.train_accuracy)
    return msgspec.structs.replace(
        _begun_row(paths, found.status),
        **{name: getattr(found, name) for name in _SAME},
        accuracy=next((value for value in accuracies if value is not None), None),
        loss=found.train_loss,
        worth=found.worth.advice if found.worth else None,
    )


def _live_row(paths: RunPaths) -> RunRow:
    """The row of a run without a summary, from the newest events of its workers."""
    launch = read_record(paths.launch, LaunchRecord) or LaunchRecord()
    state, logs = ProgressState(), [RankLog(worker.rank) for worker in launch.workers]
    for log in logs:
        file = paths.events_of(log.rank)
        size = file.stat().st_size if file.is_file() else 0
        # The first line is cut short, and is left out.
        for event in decoded(LineTail(file, max(0, size - _TAIL)).poll()):
            log.add(event)
            state.take(event)
    row = _begun_row(paths, status_of(paths, logs, len(logs) or None))
    accuracies = (state.logged.get(f"{part}_accuracy") for part in ("test", "validation"))
    losses = [worker.loss for worker in state.workers.values() if worker.loss is not None]
    goes_on = row.status == RUNNING
    return msgspec.structs.replace(
        row,
        seconds=time.time() - row.began if goes_on and row.began is not None else None,
        epochs=max((done.epoch + 1 for log in logs for done in log.epochs), default=None),
        accuracy=next((value for value in accuracies if value is not None), None),
        loss=sum(losses) / len(losses) if losses else None,
        samples_per_second=state.rate if goes_on else None,
    )


def _begun_row(paths: RunPaths, status: str) -> RunRow:
    """What is known of a run since its beginning."""
    launch = read_record(paths.launch, LaunchRecord) or LaunchRecord()
    plan = read_record(paths.plan, PlanRecord) or PlanRecord()
    names = [machine.name for machine in plan.machines]
    return RunRow(
        id=id_of(paths),
        name=name_of(paths.id),
        script=Path(launch.script).name if launch.script else None,
        system=launch.system,
        strategy=launch.settings.strategy if launch.settings else plan.strategy,
        workers=plan.workers or len(launch.workers) or None,
        machines=names or list(dict.fromkeys(worker.machine for worker in launch.workers)),
        status=status,
        began=launch.started_wall,
        predicted_samples_per_second=plan.predicted.get("samples_per_second"),
    )
