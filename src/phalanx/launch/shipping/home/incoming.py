"""Takes in the results of one machine under names of our own; theirs are only noted.

Nothing that a machine says is trusted: names are checked, a file is never larger than it was
announced, and one whose checksum is wrong is dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from phalanx.agent.storage.run_results import FILES, FOLDERS
from phalanx.core import words

MOST_FILES = 100_000
MOST_REFUSED = 200
MOST_FOLDERS = 64
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Announced(msgspec.Struct):
    """A file that is coming; at most ``size`` bytes of it are taken."""

    path: str
    size: int


@dataclass(frozen=True)
class Received:
    """A file that has arrived whole, still under a name of ours."""

    path: str
    sha256: str
    size: int
    scratch: Path


@dataclass
class _Current:
    announced: Announced
    scratch: Path
    file: BinaryIO
    left: int
    digest: Any = field(default_factory=hashlib.sha256)


class Incoming:
    """Takes ``result``, ``result_part`` and ``result_end`` of one machine."""

    def __init__(self, machine: str, scratch: Path) -> None:
        self.machine = machine
        self.received: list[Received] = []
        self.refused: list[str] = []
        self.bytes = 0
        """Bytes that have come so far, whatever became of them."""
        scratch.mkdir(exist_ok=True)
        self._scratch = scratch
        self._current: _Current | None = None

    def on_tell(self, name: str, header: dict[str, Any], payload: bytes) -> bool:
        """Take in a message; return whether it was about results."""
        try:
            if name == "result":
                self._begin(header)
            elif name == "result_part":
                self.bytes += len(payload)
                self._take(payload)
            elif name == "result_end":
                self._end(header)
            else:
                return False
        except OSError as error:  # of this machine's disk; the next file may still fit
            self._refuse(error.strerror or str(error))
        return True

    def close(self) -> None:
        """Drop what is not whole."""
        current, self._current = self._current, None
        if current is not None:
            current.file.close()
            current.scratch.unlink(missing_ok=True)

    def _note(self, refused: str) -> None:
        if len(self.refused) < MOST_REFUSED:  # messages without end must not fill our memory
            self.refused.append(refused)

    def _begin(self, header: dict[str, Any]) -> None:
        self.close()
        try:
            announced = msgspec.convert(header, Announced)
        except msgspec.ValidationError:
            self._note("a file without a name")
            return
        if announced.size < 0 or not is_safe(announced.path):
            self._note(f"{shown(announced.path)} (unsafe path)")
        elif len(self.received) >= MOST_FILES:
            self._note(f"{shown(announced.path)} (too many files)")
        elif announced.size > shutil.disk_usage(self._scratch).free:
            self._note(f"{shown(announced.path)} (larger than the free space here)")
        else:
            scratch = self._scratch / str(len(self.received))
            self._current = _Current(announced, scratch, scratch.open("xb"), announced.size)

    def _take(self, payload: bytes) -> None:
        current = self._current
        if current is None:
            return
        current.left -= len(payload)
        if current.left < 0:
            self._refuse("larger than announced")
            return
        current.digest.update(payload)
        current.file.write(payload)

    def _end(self, header: dict[str, Any]) -> None:
        current = self._current
        if current is None:
            return
        digest = current.digest.hexdigest()
        if current.left or header.get("sha256", digest) != digest:
            self._refuse("changed while it was sent")
            return
        current.file.close()
        self._current = None
        found = current.announced
        self.received.append(Received(found.path, digest, found.size, current.scratch))

    def _refuse(self, why: str) -> None:
        if self._current is not None:
            self._note(f"{shown(self._current.announced.path)} ({why})")
        self.close()


def is_safe(path: str) -> bool:
    """Whether a path stays where results may go."""
    parts = path.split("/")
    if len(path) > 4000 or len(parts) > MOST_FOLDERS or _CONTROL.search(path):
        return False
    if any(part in ("", ".", "..") for part in parts):
        return False
    try:
        long = any(len(part.encode()) > 255 for part in parts)
    except UnicodeEncodeError:
        return False
    return not long and (path in FILES or (parts[0] in FOLDERS and len(parts) > 1))


def shown(path: str) -> str:
    return words.short(path, 500)


@contextlib.contextmanager
def folder_below(folder: Path, names: Sequence[str]) -> Iterator[int]:
    """Open the folder ``names`` below ``folder``, and make it if it is missing.

    A link on the way is an error: it may lead anywhere.
    """
    place = os.open(folder, _OPEN_FOLDER)
    try:
        for name in names:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=place)
            inner = os.open(name, _OPEN_FOLDER, dir_fd=place)
            os.close(place)
            place = inner
        yield place
    finally:
        os.close(place)
