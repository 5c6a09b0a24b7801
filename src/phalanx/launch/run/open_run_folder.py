"""Checks that a run's folder still exists, adds to its logs, and copies the script into it."""

from __future__ import annotations

import contextlib
import os
from contextlib import suppress
from pathlib import Path

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.script.script_imports import script_files


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
