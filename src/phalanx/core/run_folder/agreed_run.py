"""One run folder for processes that were not started together, agreed on through the file system.

A cluster's launcher starts each process by itself. The first of them makes the folder;
the others, on this machine or on any that shares the file system, find it by a word that they all
know. The word may have been used before (launchers may restart their numbers): every process of
a run holds a lock while it lives, so a word without a lock is free for a new run.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import MOST_NAME, REMEDY, RunPaths, new_run, runs_home, slug

_HIDDEN = ".started"
_held: list[int] = []
"""Descriptors whose locks show that this process lives; the system closes them at its end."""


def agreed_run(word: str, title: str) -> RunPaths:
    """Return the folder of the run called ``word`` if it runs, else a new one named ``title``."""
    place = runs_home() / _HIDDEN
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _alone(place / f"{slug(word)[:MOST_NAME]}.gate"):
            return _found_or_made(place / slug(word)[:MOST_NAME], title)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"cannot agree on a run folder in {place}: {why}", REMEDY) from error


@contextmanager
def _alone(gate: Path) -> Iterator[None]:
    """Hold a lock, so that one process at a time looks for the folder or makes it."""
    file = os.open(gate, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _found_or_made(record: Path, title: str) -> RunPaths:
    file = os.open(record, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    _held.append(file)
    if _nobody_lives(file):
        made = new_run(title)
        os.ftruncate(file, 0)
        os.pwrite(file, made.id.encode(), 0)
        paths = made
    else:
        paths = RunPaths(runs_home() / slug(os.pread(file, 4096, 0).decode(errors="replace")))
    # This process holds the gate, so no other one sees the moment between the two locks.
    fcntl.flock(file, fcntl.LOCK_SH)
    return paths.make()


def _nobody_lives(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
