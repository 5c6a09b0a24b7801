"""Checks that a run's folder still exists and has room, adds to its logs, and copies the script
into it."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.script.script_imports import script_files
from phalanx.core.words import size

LEAST_FREE = 1e9
"""Bytes that have to be free on the disk with a run's folder,"""
LEAST_SHARE = 0.02
"""and the share of the disk,"""
ENOUGH_FREE = 2e10
"""which does not count while so many bytes are free, as on a very large disk."""
LOOK_SECONDS = 10.0


class OpenRunFolder:
    """A folder that exists now, distinguished from another one that gets its name later."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._about = folder, folder.stat()

    def is_there(self) -> bool:
        """Whether the folder is there; also true while a network file system does not answer."""
        try:
            return os.path.samestat(self._folder.stat(), self._about)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True


class FreeSpace:
    """Says once that the disk with a run's folder is nearly full."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._due: float | None = clock()

    def news(self) -> Iterator[str]:
        now = self._clock()
        if self._due is None or now < self._due:
            return
        self._due = now + LOOK_SECONDS
        try:
            disk = shutil.disk_usage(self._folder)
        except OSError:
            return
        few = LEAST_FREE if disk.free >= ENOUGH_FREE else max(LEAST_FREE, LEAST_SHARE * disk.total)
        if disk.free < few:
            self._due = None
            yield (
                f"the disk with {self._folder} is nearly full: {size(disk.free)} of "
                f"{size(disk.total)} are free; events, logs and checkpoints may be lost"
            )


def folder_gone(paths: RunPaths) -> MachineError:
    """Return the error for a run whose folder was removed or replaced while it ran."""
    return MachineError(
        f"the run's folder {paths.folder} was removed or replaced while it ran",
        "Start the run again: the contents of the folder are lost.",
    )


def append_to_log(log: Path, lines: list[str]) -> None:
    """Append ``lines`` to a log; after the run, so that the terminal does not show them twice."""
    if not lines:
        return
    with contextlib.suppress(OSError):
        # Follow no link: the folder of a run that is attached to may be somebody else's.
        number = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        with os.fdopen(number, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def keep_source(script: Path, paths: RunPaths) -> None:
    """Copy ``script`` and the modules beside it that it imports into the run's folder."""
    root = script.resolve().parent
    for file in script_files(script):
        copy = paths.source / file.relative_to(root)
        # A module that cannot be copied is missing in the bundle, not in the training.
        with suppress(OSError):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
