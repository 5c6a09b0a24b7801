"""The runs and studies of a folder, newest first: a row each, as the page "Runs" lists them."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.files import read_tail
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.event_types import decode
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.summary.progress_state import ProgressState
from phalanx.observe.summary.run_records import LaunchRecord, PlanRecord, StudyRecord, read_record
from phalanx.observe.summary.run_status import RUNNING, status_of

INSIDE = ":"
"""Between the names of a study and of a run in its folder."""
UNREADABLE = "unreadable"
_TAIL = 1 << 16
_LONGEST_NAME = 255
_MOST_RANKS = 256
"""The most workers whose newest events are read for a row."""


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


class _Advice(msgspec.Struct):
    advice: str | None = None


class _Outcome(msgspec.Struct):
    """The fields of ``summary.json`` that a row shows."""

    status: str
    strategy: str | None = None
    workers: int | None = None
    epochs: int | None = None
    seconds: float | None = None
    samples_per_second: float | None = None
    test_accuracy: float | None = None
    validation_accuracy: float | None = None
    train_accuracy: float | None = None
    train_loss: float | None = None
    worth: _Advice | None = None


def find_run(home: Path, run_id: str) -> RunPaths:
    """Return the run ``run_id`` of ``home``, or the run ``STUDY:RUN`` in a study's folder."""
    plain = _is_name(run_id) and _is_folder(home / run_id)
    names = [run_id] if plain else run_id.split(INSIDE)
    if len(names) > 2 or not all(map(_is_name, names)):
        raise _unknown(run_id)
    paths = RunPaths(home.joinpath(*names))
    if not (_is_folder(paths.folder) and _lies_in(home, paths.folder) and _is_run(paths)):
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
    folders = sorted(_folders(home), key=lambda folder: folder.name, reverse=True)
    studies = {folder: row for folder in folders if (row := _study(folder)) is not None}
    belongs = {run: study.id for study in studies.values() for run in study.runs}
    rows: list[RunRow] = []
    for run_id, paths in _runs(folders, studies.keys()):
        if before is not None and run_id >= before:
            continue
        if len(rows) >= limit:
            return RunList(runs=rows, studies=list(studies.values()), more=True)
        study = run_id.partition(INSIDE)[0] if INSIDE in run_id else belongs.get(run_id)
        rows.append(msgspec.structs.replace(row_of(paths), study=study))
    return RunList(runs=rows, studies=list(studies.values()))


def _runs(folders: list[Path], studies: Collection[Path]) -> Iterator[tuple[str, RunPaths]]:
    for folder in folders:
        if folder in studies:
            for inner in sorted(_folders(folder), key=lambda one: one.name, reverse=True):
                if _is_run(RunPaths(inner)):
                    yield f"{folder.name}{INSIDE}{inner.name}", RunPaths(inner)
        elif _is_run(RunPaths(folder)):
            yield folder.name, RunPaths(folder)


def _folders(home: Path) -> Iterator[Path]:
    try:
        entries = list(os.scandir(home))
    except OSError:
        return
    for entry in entries:
        path, link = home / entry.name, entry.is_symlink()
        there = _is_folder(path) and _lies_in(home, path) if link else entry.is_dir()
        if there and _is_name(entry.name):
            yield path


def _is_name(name: str) -> bool:
    plain = name != "" and not name.startswith(".") and len(name) <= _LONGEST_NAME
    return plain and not re.search(r"[/\\\x00]", name)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or no text
        return False


def _lies_in(home: Path, path: Path) -> bool:
    """Whether no symbolic link leads out of ``home``."""
    try:
        return path.resolve().is_relative_to(home.resolve())
    except (OSError, RuntimeError):
        return False


def _is_run(paths: RunPaths) -> bool:
    return paths.launch.is_file() or paths.summary.is_file()


def _unknown(run_id: str) -> UnknownRun:
    return UnknownRun(f"there is no run {run_id[:80]!r}", "List the runs: phalanx runs")


def _study(folder: Path) -> StudyRow | None:
    file = f"{folder}/study.json"
    if not os.path.isfile(file):  # noqa: PTH113  (asked of every folder, every few seconds)
        return None
    try:
        record = read_record(Path(file), StudyRecord) or StudyRecord()
    except InputError:  # longer than Phalanx writes it
        record = StudyRecord()
    name, began = folder.name, record.started_wall
    return StudyRow(id=name, script=record.script, began=began, runs=record.runs)


def row_of(paths: RunPaths) -> RunRow:
    """Return the row of one run; a folder that cannot be read has one, too."""
    try:
        about = paths.summary.stat()
        stamp = about.st_mtime_ns, about.st_size
    except OSError:
        stamp = 0, 0
    try:
        return _ended_row(paths, stamp) or _live_row(paths)
    except InputError:  # a file is longer than Phalanx writes it
        return RunRow(id=id_of(paths), name=name_of(paths.id), status=UNREADABLE)


@functools.lru_cache(maxsize=4096)
def _ended_row(paths: RunPaths, stamp: tuple[int, int]) -> RunRow | None:
    """The row of a run with a summary; it is kept while the summary is that of ``stamp``."""
    found = read_record(paths.summary, _Outcome)
    if found is None or found.status == RUNNING:
        return None
    accuracies = (found.test_accuracy, found.validation_accuracy, found.train_accuracy)
    return msgspec.structs.replace(
        _begun_row(paths, found.status),
        strategy=found.strategy,
        workers=found.workers,
        seconds=found.seconds,
        epochs=found.epochs,
        accuracy=next((value for value in accuracies if value is not None), None),
        loss=found.train_loss,
        samples_per_second=found.samples_per_second,
        worth=found.worth.advice if found.worth else None,
    )


def _live_row(paths: RunPaths) -> RunRow:
    """The row of a run without a summary, from the newest events of its workers."""
    launch = read_record(paths.launch, LaunchRecord)
    state, logs = ProgressState(), []
    ranks = [worker.rank for worker in launch.workers] if launch else []
    for rank in ranks[:_MOST_RANKS]:
        log = RankLog(rank)
        for line in read_tail(paths.events_of(rank), _TAIL).encode().splitlines():
            try:
                event = decode(line)
            except (msgspec.MsgspecError, RecursionError):
                continue  # cut short, at the beginning or the end
            log.add(event)
            state.take(event)
        logs.append(log)
    status = status_of(paths, logs, len(ranks) or None)
    row = _begun_row(paths, status)
    accuracies = (state.logged.get(f"{part}_accuracy") for part in ("test", "validation"))
    losses = [worker.loss for worker in state.workers.values() if worker.loss is not None]
    return msgspec.structs.replace(
        row,
        seconds=_seconds(row.began, status, paths),
        epochs=max((done.epoch + 1 for log in logs for done in log.epochs), default=None),
        accuracy=next((value for value in accuracies if value is not None), None),
        loss=sum(losses) / len(losses) if losses else None,
        samples_per_second=state.rate if status == RUNNING else None,
    )


def _seconds(began: float | None, status: str, paths: RunPaths) -> float | None:
    if began is None:
        return None
    if status == RUNNING:
        return max(0.0, time.time() - began)
    try:
        written = [file.stat().st_mtime for file in paths.events.glob("rank-*.jsonl")]
    except OSError:
        return None
    return max(0.0, max(written) - began) if written else None


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
