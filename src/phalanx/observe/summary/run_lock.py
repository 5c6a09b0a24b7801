"""The controller of a run: ``controller.json``, which the controller keeps open and locked.

Anybody could write the file, so a process that it names counts only if its start time matches, it
has this very file open, and the file is locked. A run's folder thus cannot direct a signal to an
unrelated process.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.summary.run_records import ControllerRecord

_LARGEST = 4096
_CLOCK_ERROR = 1.0
"""Seconds by which two readings of the start of a process may differ."""


@contextmanager
def hold(paths: RunPaths) -> Iterator[None]:
    """Within the ``with`` block, this process is the run's controller."""
    me = {"pid": os.getpid(), "created": psutil.Process().create_time()}
    scratch = paths.controller.with_name(f".controller-{os.getpid()}.part")
    scratch.unlink(missing_ok=True)
    with scratch.open("x", encoding="utf-8") as file:
        # Locked before it gets its name, so that no process can find it unlocked.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(json.dumps(me) + "\n")
        file.flush()
        scratch.replace(paths.controller)
        try:
            yield
        finally:
            paths.controller.unlink(missing_ok=True)


def controller_of(paths: RunPaths) -> psutil.Process | None:
    """Return the living process that controls this run, if there is one."""
    try:
        # Do not follow a link to another run's record, nor wait for a pipe.
        file = os.open(paths.controller, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        process = _recorded(file)
        return process if process and _locked(file) and _has_open(process, file) else None
    except (OSError, psutil.Error):
        return None
    finally:
        os.close(file)


def _recorded(file: int) -> psutil.Process | None:
    """Return the process that the record names, but not a later one of the same id."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        return None
    try:
        record = msgspec.json.decode(os.read(file, _LARGEST), type=ControllerRecord)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not 0 < record.pid < 2**31:
        return None
    process = psutil.Process(record.pid)
    same = abs(process.create_time() - record.created) < _CLOCK_ERROR
    return process if same and process.is_running() else None


def _locked(file: int) -> bool:
    try:
        # Shared, so that two readers at once do not take each other for the controller.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True  # or this file system has no locks: then an open file must suffice
    return False


def _has_open(process: psutil.Process, file: int) -> bool:
    try:
        opened = process.open_files()
    except psutil.AccessDenied:
        # Another user's process: its open files are hidden, and it cannot be signalled either.
        return any("phalanx" in word for word in process.cmdline())
    mine = os.fstat(file)
    for one in opened:
        with suppress(OSError):
            if os.path.samestat(Path(one.path).stat(), mine):
                return True
    return False
