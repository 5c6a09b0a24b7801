"""Files that are written whole and read within limits.

A reader sees all of the new file, or still the old one. A file in a run's folder may be somebody
else's: it is neither trusted to end soon nor to be a file.
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
"""Bytes of a JSON file of a run: a summary of 200,000 epochs is shorter."""
LONGEST_LINE = 16 << 20
LARGEST_LOG = 1 << 30
"""Bytes of a file of lines that are read to be kept in memory."""
_CHUNK = 1 << 20


class TooLarge(InputError):  # noqa: N818  (a state of the file)
    """A file is longer than anything that Phalanx writes there."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` in one step.

    A link in the place of ``path`` is replaced, never followed: a folder that came from somebody
    else cannot direct what is written elsewhere.
    """
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        # Only ever a new file, under a name where no link can have been put.
        with scratch.open("xb") as file:
            file.write(data)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def write_asked(
    path: Path, content: str | bytes, remedy: str = "Give another --out.", mode: int | None = None
) -> None:
    """``write_whole`` of a file that the user asked for; what hinders it is the user's to mend."""
    try:
        write_whole(path, content)
        if mode is not None:
            path.chmod(mode)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}", remedy) from None


@contextlib.contextmanager
def replace_with(target: Path) -> Iterator[BinaryIO]:
    """A file that becomes ``target`` when the block ends well, and leaves nothing otherwise."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def read_bounded(path: Path, most: int = LARGEST_RECORD) -> bytes:
    """All of ``path``; :class:`TooLarge` when it has more than ``most`` bytes.

    What is not a plain file reads as missing: a pipe would be waited for.
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
    """The last ``most`` bytes of a file, as text; empty where there is no such file."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            file.seek(max(0, os.fstat(number).st_size - most))
            return file.read(most).decode("utf-8", errors="replace")
    except OSError:
        return ""


def read_lines(path: Path, most: int = LARGEST_LOG) -> Iterator[bytes | None]:
    """The complete lines of a file, newline included; ``None`` once for each thing left out.

    That is a line longer than ``LONGEST_LINE``, and what comes after the first ``most`` bytes.
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
    """Where this machine keeps what can be made again."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "phalanx"
