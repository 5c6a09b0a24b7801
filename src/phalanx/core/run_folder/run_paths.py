"""Every path inside a run's folder, in one place.

``runs/<id>/`` (in ``./runs``, or ``$PHALANX_RUNS``) has everything that is known about a run. A
study (of ``compare``) is a folder of the same kind that holds ``study.json`` and its own report.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean

REMEDY = "Set PHALANX_RUNS to a folder you may write to."

PRIVATE = "private-"


def runs_home() -> Path:
    named = os.environ.get("PHALANX_RUNS", "runs")
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise InputError(
            f"PHALANX_RUNS is in the home of an unknown user: {named}", REMEDY
        ) from error


class _Inside:
    """A path inside a run's folder, as an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: RunPaths, _: object = None) -> Path:
        return paths.folder / self._name


@dataclass(frozen=True)
class RunPaths:
    """The files of one run."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name or self.folder.resolve().name

    plan = _Inside("plan.json")
    launch = _Inside("launch.json")
    signature = _Inside("launch.sig")
    """Proves that this user wrote ``launch.json``, see ``trust.py``."""
    controller = _Inside("controller.json")
    """The run's controller: ``{"pid": …, "created": …}``; it may have ended since."""
    detached = _Inside("detached")
    """Exists while a run may continue without a controller."""
    summary = _Inside("summary.json")
    report = _Inside("report.html")
    figures = _Inside("figures")
    events = _Inside("events")
    logs = _Inside("logs")
    machines = _Inside("machines")
    rollups = _Inside("rollups")
    """The steps in sums of 1, 10 and 60 seconds: made from the events, and made again if absent."""
    files = _Inside("files")
    """``run.folder`` of the script API: files that workers write here are fetched."""
    source = _Inside("source")
    """The script and its own modules, as they were when the run began."""
    model = _Inside("model.safetensors")
    best = _Inside("best.safetensors")
    checkpoints = _Inside("checkpoints")
    """A folder for each checkpoint, numbered in the order in which they were written."""
    switch = _Inside("switch.json")
    """The request of ``phalanx switch`` to a run in progress: ``{"number": N, "spec": …}``."""
    profile = _Inside("profile.json")
    """The figures of a run that only measures its script."""
    profiles = _Inside("profiles")
    """What each worker's steps consist of, operator by operator, where ``--profile`` was given."""
    study = _Inside("study.json")
    notes = _Inside("notes.jsonl")
    """What the controller said while the run went on, one note a line."""
    made_files = _Inside("logs/made-files.jsonl")
    """The files that an adopted script has made in the first worker, one name per line."""

    stacks = _Inside("logs/stacks.txt")
    """Where each worker was whenever no step was finished for long."""

    def events_of(self, rank: int) -> Path:
        return self.events / f"rank-{rank}.jsonl"

    def log_of(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def traceback_of(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.traceback"

    def make_private(self) -> str:
        """Make a folder for files of one worker that are no result of the run; return its path."""
        return tempfile.mkdtemp(prefix=PRIVATE, dir=self.folder.absolute())

    def remove_private(self) -> None:
        """Remove the private folders of killed workers, which could not do it themselves."""
        for folder in self.folder.glob(f"{PRIVATE}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def machine(self, name: str) -> Path:
        return self.machines / f"{name}.jsonl"

    def make(self) -> RunPaths:
        """Create the folder and its sub-folders; refuse clearly when that is impossible."""
        try:
            for folder in (self.events, self.logs, self.machines, self.files):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        return self

    def remove_if_empty(self) -> None:
        """Remove the folder if neither it nor any folder in it has a file."""
        if not any(files for _, _, files in os.walk(self.folder)):
            shutil.rmtree(self.folder, ignore_errors=True)


MOST_SHOWN = 5  # the most (newest) runs that are listed if a name is like none
MOST_NAME = 120  # characters: a file name has at most 255 bytes, and this is a part of one


def slug(name: str) -> str:
    """Return ``name`` in a form that can be part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def new_run(name: str) -> RunPaths:
    """Make a new folder, named after the time and ``name``."""
    base = f"{time.strftime('%Y%m%d-%H%M%S')}-{slug(name)[:MOST_NAME]}"
    home = _made_home()
    for attempt in range(1, 1000):
        folder = home / (base if attempt == 1 else f"{base}-{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(folder, error) from error
        return RunPaths(folder).make()
    raise InputError(f"too many runs named {base}", "Give this one another --name.")


def _made_home() -> Path:
    home = runs_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(home, error) from error
    return home


def _unwritable(folder: Path, error: OSError) -> InputError:
    # A broken symbolic link "exists" for ``mkdir``, and for nothing else.
    in_the_way = isinstance(error, FileExistsError)
    why = "it exists and is not a folder" if in_the_way else error.strerror
    return InputError(f"cannot write the run folder {folder}: {why}", REMEDY)


def list_runs() -> list[RunPaths]:
    """Return every run and study in ``runs_home()``, oldest first."""
    home = runs_home()
    if not home.is_dir():
        return []
    folders = (f for f in home.iterdir() if f.is_dir())
    found = [RunPaths(f) for f in folders]
    return sorted((r for r in found if r.launch.exists() or r.study.exists()), key=lambda r: r.id)


def beside(paths: RunPaths, name: str) -> RunPaths | None:
    """Return the folder ``name`` beside ``paths``; ``None`` for a name that leads elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return None
    return RunPaths(paths.folder.parent / name)


def find_run(name: str | None) -> RunPaths:
    """Return the run ``name`` (an id, a unique part of an id, or a path), or else the newest."""
    if name and Path(name).is_dir():
        return RunPaths(Path(name))
    runs = list_runs()
    if not runs:
        raise InputError(f"there are no runs in {runs_home()}", "Start one: phalanx demo")
    if name is None:
        return runs[-1]
    matches = (
        [r for r in runs if r.id == name]
        # The run's name without the time in front, as the user gave it.
        or [r for r in runs if re.sub(r"^\d{8}-\d{6}-", "", r.id) == name]
        or [r for r in runs if name in r.id]
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        newest = ", ".join(r.id for r in reversed(matches[-3:]))
        raise InputError(f"'{name}' matches {len(matches)} runs", f"Name one: {newest}")
    raise InputError(
        f"there is no run '{name}'", did_you_mean(name, (r.id for r in runs), MOST_SHOWN)
    )
