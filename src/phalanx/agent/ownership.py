"""Checks who can write to our folders: others must not, because files there are executed.

Folders that only this user and root can write to, below folders of which the same holds, cannot be
changed by another user between a look at them and their use.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from phalanx.agent.frames import RequestProblem

WORKERS_UMASK = "PHALANX_UMASK"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
MOST_LINKS = 40
PIECE = 1 << 20


def be_private() -> None:
    """Make the agent's files private; workers keep their umask, except that others cannot write."""
    before = os.umask(0o077)
    os.environ[WORKERS_UMASK] = f"{before | OTHERS_WRITE:o}"


def check(folder: Path, *parts: Path) -> None:
    """Refuse a ``folder`` or ``parts`` of it that others can put their own code into."""
    for place in (folder, *parts):
        _refuse(place, sticky=False)
    for place in _ways_to(folder):
        _refuse(place, sticky=True)


def _refuse(place: Path, *, sticky: bool) -> None:
    """Refuse a place that others can change; ``sticky``: folders like /tmp are allowed."""
    try:
        status = place.lstat() if sticky else place.stat()
    except FileNotFoundError:
        return
    remedy = "Set 'folder' in the blueprint to a folder of your own on that machine"
    if status.st_uid not in (os.getuid(), 0):
        raise RequestProblem(f"{place} belongs to another user", f"{remedy}.")
    if _others_write(status, sticky):
        raise RequestProblem(
            f"other users can write to {place}",
            f"{remedy}; or, if you trust what is already there, run: chmod -R go-w {place}",
        )


def _ways_to(folder: Path) -> Iterator[Path]:
    """Every folder and link above ``folder``, and above where links lead."""
    ends = [folder]
    for end in ends:
        for place in (end, *end.parents):
            if place.is_symlink() and len(ends) < MOST_LINKS:
                ends.append(place.parent / os.readlink(str(place)))  # noqa: PTH115  (Python 3.8)
            if place != folder or place.is_symlink():
                yield place


def _others_write(status: os.stat_result, sticky: bool = False) -> bool:
    if stat.S_ISLNK(status.st_mode) or (sticky and status.st_mode & stat.S_ISVTX):
        return False
    return bool(status.st_mode & OTHERS_WRITE)


def is_ours(status: os.stat_result) -> bool:
    """Whether only this user and root can have written it."""
    return status.st_uid in (os.getuid(), 0) and not _others_write(status)


def is_our_tree(folder: Path) -> bool:
    """Whether a folder and all that is below it are ours."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode) or not is_ours(folder.lstat()):
            return False
        for place, folders, names in os.walk(folder):
            if not all(is_ours(Path(place, name).lstat()) for name in (*folders, *names)):
                return False
    except OSError:
        return False
    return True


def content_is(path: Path, digest: str) -> bool:
    """Whether this is a file of ours, no link, whose checksum is ``digest``."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(number, "rb", buffering=0) as file:
        status = os.fstat(number)
        ours = stat.S_ISREG(status.st_mode) and is_ours(status)
        return ours and checksum(file) == digest


def checksum(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while True:
        piece = file.read(PIECE)
        if not piece:
            return digest.hexdigest()
        digest.update(piece)
