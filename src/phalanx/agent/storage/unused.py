"""Remove files that no run has used for 30 days: blobs, code, data, environments, old runs."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from phalanx.agent import background
from phalanx.agent.frames import RequestProblem
from phalanx.agent.life import PARTS
from phalanx.agent.storage.environments import MARKER

KEEP_SECONDS = 30 * 24 * 3600.0
PART_SECONDS = 24 * 3600.0
MOST_LOOKED_AT = 200000


def remove_unused(home: Path, is_needed: Callable[[Path], bool]) -> None:
    """Remove old files; each use touches a file, so nothing that a current run needs is old."""
    now = time.time()
    old = now - KEEP_SECONDS
    for path in itertools.islice((home / "blobs").glob("*/*"), MOST_LOOKED_AT):
        _remove_if_older(path, old)
    for kind in ("code", "data", "wheels"):
        for path in (home / kind).glob("*.part*"):
            _remove_if_older(path, now - PART_SECONDS)
        for path in (home / kind).glob("*"):
            _remove_if_older(path, old)
    for path in (home / "environments").glob("*"):
        if path.is_dir() and _touched(path / MARKER, path) < old:
            _remove_environment(path, old)
    for path in (home / "runs").glob("*"):
        if path.is_dir() and _last_sign(path) < old and not _lives(path) and not is_needed(path):
            remove(path)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _remove_if_older(path: Path, moment: float) -> None:
    try:
        if path.lstat().st_mtime < moment:
            remove(path)
    except OSError:
        pass


def _touched(*paths: Path) -> float:
    """When the first of ``paths`` that exists was changed; now, if none exists."""
    for path in paths:
        with contextlib.suppress(OSError):
            return path.lstat().st_mtime
    return time.time()


def _remove_environment(folder: Path, moment: float) -> None:
    """Remove an old environment that no run locks; its lock stays, as others may wait for it."""
    with contextlib.suppress(OSError), folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _touched(folder / MARKER, folder) < moment:
            # The marker goes first: a half removed environment must not pass for a whole one.
            (folder / MARKER).unlink(missing_ok=True)
            remove(folder)


def _last_sign(run: Path) -> float:
    """When a run's folder, or a file that its workers write, last changed."""
    parts = [run / name for name in PARTS]
    files = [path for part in parts for path in part.glob("*")]
    return max(_touched(path) for path in (run, *parts, *files) if path.exists())


def _lives(run: Path) -> bool:
    try:
        return background.answers(run)
    except RequestProblem:
        return True
