"""Files that are written whole and read within limits.

A reader sees the whole new file, or still the old one. A file in a run's folder may be another
user's, so reading does not rely on it being short, or a plain file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from phalanx.core.errors import InputError

LARGEST_RECORD = 64 << 20
"""The most bytes of a run's JSON file: a summary of 200,000 epochs has fewer."""
LONGEST_LINE = 16 << 20
LARGEST_LOG = 1 << 30
"""The most bytes that are read of a file whose lines are kept in memory."""
_CHUNK = 1 << 20


class TooLarge(InputError):  # noqa: N818  (a state of the file)
    """A file is longer than anything that Phalanx writes there."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` in one step.

    A link in the place of ``path`` is replaced, never followed: a folder from another user cannot
    redirect the write.
    """
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        # Always a new file, under a random name where no link can have been put.
        with scratch.open("xb") as file:
            file.write(data)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def write_asked(
    path: Path, content: str | bytes, remedy: str = "Give another --out.", mode: int | None = None
) -> None:
    """Write a file that the user asked for, in one step; failures are errors of the input."""
    try:
        write_whole(path, content)
        if mode is not None:
            path.chmod(mode)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}", remedy) from None


@contextlib.contextmanager
def replace_with(target: Path) -> Iterator[BinaryIO]:
    """Yield a file that becomes ``target`` if the block succeeds, and is removed otherwise."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def read_bounded(path: Path, most: int = LARGEST_RECORD) -> bytes:
    """Return all of ``path``; raise :class:`TooLarge` if it has more than ``most`` bytes.

    Anything but a plain file counts as missing: reading a pipe would wait.
    """
    # Not blocking, because opening a pipe would wait for somebody to write to it.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        about = os.fstat(number)
        if not stat.S_ISREG(about.st_mode):
            raise FileNotFoundError(2, "not a file", str(path))
        data = file.read(most + 1) if about.st_size <= most else b""
    if about.st_size > most or len(data) > most:
        raise TooLarge(
            f"{path} has {max(about.st_size, len(data)):,} bytes, but the limit is {most:,}",
            "Remove the file, or use another folder: Phalanx does not write files of this size.",
        )
    return data


def read_tail(path: Path, most: int) -> str:
    """The last ``most`` bytes of a file, as text; empty if the file cannot be read."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            file.seek(max(0, os.fstat(number).st_size - most))
            return file.read(most).decode("utf-8", errors="replace")
    except OSError:
        return ""


def read_lines(path: Path, most: int = LARGEST_LOG) -> Iterator[bytes | None]:
    """Yield the complete lines of a file, newline included, and ``None`` for each part left out.

    Left out are a line longer than ``LONGEST_LINE``, and the rest after the first ``most`` bytes.
    """
    with path.open("rb", buffering=_CHUNK) as file:
        left = most
        while left > 0 and (line := file.readline(LONGEST_LINE)):
            left -= len(line)
            if line.endswith(b"\n"):
                yield line
                continue
            rest = line
            while left > 0 and rest and not rest.endswith(b"\n"):
                rest = file.readline(_CHUNK)
                left -= len(rest)
            if len(line) == LONGEST_LINE:
                yield None
        if left <= 0 and file.read(1):
            yield None


def cache_home() -> Path:
    """Return the folder of this machine for files that can be made again."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "phalanx"
