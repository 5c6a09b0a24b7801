"""Writes files that survive a crash: they get their names once they are whole on the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

Steps = Callable[[str], None]
"""Called with the name of every step before it is taken, so that a test can fail at each."""


def unwatched(_step: str) -> None:
    """Ignore the name of a step of writing."""


def scratch_of(path: Path) -> Path:
    """Return the temporary name of ``path`` while it is written."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def durable(path: Path, steps: Steps = unwatched) -> Iterator[BinaryIO]:
    """Open a new file that appears as ``path`` once it is whole and on the disk. A link in its
    place is replaced, never followed."""
    scratch = scratch_of(path)
    steps(f"write {path.name}")
    scratch.unlink(missing_ok=True)
    try:
        with scratch.open("xb") as file:
            yield file
            steps(f"fsync {path.name}")
            file.flush()
            os.fsync(file.fileno())
        steps(f"rename {path.name}")
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def write_durably(path: Path, content: bytes, steps: Steps = unwatched) -> None:
    with durable(path, steps) as file:
        file.write(content)


def fsync_folder(folder: Path, steps: Steps = unwatched) -> None:
    """Make the names in ``folder`` survive a crash."""
    steps(f"fsync {folder.name}")
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
