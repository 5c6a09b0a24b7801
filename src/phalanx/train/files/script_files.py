"""Which files are the script's, and which of them the first worker has made in this run.

To another worker on the same machine those are not there: it may execute the same lines a little
later, and a script that finds its output may refuse to begin, or take it up.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from phalanx.core.run_folder.run_paths import RunPaths

lstat = os.lstat  # as it is: what is put in its place asks us
_NO_FILES = ("/dev/", "/proc/", "/sys/")


class ScriptFiles:
    """By their whole names."""

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._folders: set[str] = set()

    def leave_alone(self, path: str) -> None:
        """No other worker has this one: the name of a temporary file, or folder."""
        self._own.add(os.path.abspath(path))  # noqa: PTH100

    def name_of(self, path: Any) -> str | None:
        """``None`` where it is no file, or of no other worker."""
        if not isinstance(path, str | PurePath) or not str(path):
            return None
        name = os.path.abspath(path)  # noqa: PTH100
        if name.startswith(_NO_FILES) or is_below(name, self._own):
            return None
        return name

    def folder_made(self, name: str) -> None:
        """By the script."""
        self._folders.add(name)

    def belongs(self, name: str) -> bool:
        """Whether it is in a folder that the script has made: the script's, whatever writes it."""
        return is_below(name, self._folders)


class FirstFiles(ScriptFiles):
    """Those of the first worker, which are real."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__()
        self._list = paths.made_files
        self._said: set[str] = set()

    def makes(self, name: str, removes: bool = False) -> None:
        """It will be there and was not, or the reverse. To be said before others can see it."""
        if is_below(name, self._said):
            return
        if not removes:
            self._said.add(name)
        with suppress(OSError), self._list.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name] if removes else name) + "\n")


class MadeFiles:
    """What the first worker has made so far, as another one of the same machine reads it; and what
    it has ``removed`` that it had not made."""

    def __init__(self, paths: RunPaths) -> None:
        self._list, self._read = str(paths.made_files), 0
        self._names: set[str] = set()
        self.removed: set[str] = set()

    def has(self, name: str) -> bool:
        """It, or a folder that it is in."""
        return is_below(name, self.names())

    def names(self) -> set[str]:
        with suppress(OSError):
            if lstat(self._list).st_size != self._read:
                with Path(self._list).open("rb") as file:
                    file.seek(self._read)
                    whole, end, _ = file.read().rpartition(b"\n")
                said = [json.loads(line) for line in whole.splitlines()]
                self._names.update(one for one in said if isinstance(one, str))
                self.removed.update(one[0] for one in said if isinstance(one, list))
                self._read += len(whole) + len(end)
        return self._names


def is_below(name: str, names: set[str]) -> bool:
    """Whether it is one of them, or in a folder that is."""
    while names and name:
        if name in names:
            return True
        name = name.rpartition("/")[0]
    return False
