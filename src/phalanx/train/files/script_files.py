"""Knows which files are the script's, and which of them the first worker has made in this run.

Those files are hidden from other workers on the same machine: they may execute the same lines a
little later, and might stop at the script's output, or continue from it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from phalanx.core.run_folder.run_paths import RunPaths

lstat = os.lstat  # the original: its replacement asks us
_NO_FILES = ("/dev/", "/proc/", "/sys/")


class ScriptFiles:
    """The files of a script, by their absolute names."""

    def __init__(self) -> None:
        self._own: set[str] = set()
        self.folders: set[str] = set()
        """Folders that the script has made."""

    def leave_alone(self, path: str) -> None:
        """Leave a temporary file or folder alone: no other worker has one of this name."""
        self._own.add(os.path.abspath(path))  # noqa: PTH100

    def name_of(self, path: Any) -> str | None:
        """Return a path's absolute name; ``None`` for no file, or a temporary one."""
        if not isinstance(path, str | PurePath) or not str(path):
            return None
        name = os.path.abspath(path)  # noqa: PTH100
        if name.startswith(_NO_FILES) or is_below(name, self._own):
            return None
        return name

    def belongs(self, name: str) -> bool:
        """Whether the file is in a folder that the script has made, whatever code writes it."""
        return is_below(name, self.folders)


class FirstFiles(ScriptFiles):
    """The files of the first worker's script, which are the real ones."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__()
        self._list = paths.made_files
        self._said: set[str] = set()

    def makes(self, name: str, removes: bool = False) -> None:
        """Announce that the script makes or ``removes`` a file, before others can see it."""
        if is_below(name, self._said):
            return
        if not removes:
            self._said.add(name)
        with suppress(OSError), self._list.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name] if removes else name) + "\n")


class MadeFiles:
    """The files that the first worker has made so far, and the other files that it has ``removed``,
    as another worker on its machine reads them from its list."""

    def __init__(self, paths: RunPaths) -> None:
        self._list, self._read = str(paths.made_files), 0
        self._names: set[str] = set()
        self.removed: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the script has made the file, or a folder that it is in."""
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
    """Whether ``name`` is among ``names``, or in a folder that is."""
    while names and name:
        if name in names:
            return True
        name = name.rpartition("/")[0]
    return False


_stat = os.stat  # the original: its replacement asks us


class PrivateFiles(ScriptFiles):
    def __init__(self, root: str, paths: RunPaths, one_machine: bool) -> None:
        super().__init__()
        self._one_machine = one_machine
        """Whether the first worker is on this machine, and announces what it makes and removes."""
        self.root = os.path.realpath(root)
        self.noted = False
        """Whether the user was told that this worker has a folder of its own."""
        self._moved_in = False
        """Whether the script is in its private folder, where names are relative to it."""
        self._made = MadeFiles(paths)
        self._gone: set[str] = set()
        """Real files that this worker's script has removed, although only from its own view."""

    # -- names -------------------------------------------------------------------------------

    def name_of(self, path: Any) -> str | None:
        name = super().name_of(path)
        if name is None or not f"{name}/".startswith(f"{self.root}/"):
            return name
        if os.path.isabs(path):  # noqa: PTH117
            return None
        self._moved_in = True
        return name[len(self.root) :] or "/"

    def copy_of(self, name: str) -> str:
        return self.root + name

    def has(self, name: str) -> bool:
        return _mode(self.copy_of(name), follow=False) is not None

    def existing_copy(self, path: Any) -> Any:
        name = self.name_of(path)
        return _like(path, self.copy_of(name)) if name is not None and self.has(name) else None

    def nowhere(self, path: Any) -> Any:
        """Return where ``path`` would be in this worker's folder, if the script has no such file to
        change; ``None`` if it has one, or would have one without the first worker."""
        name = self.name_of(path)
        if name is None or self.has(name):
            return None
        real = exists(name)  # first, as the file may be announced and removed meanwhile
        theirs = not self._one_machine or is_below(name, self._made.names() | self._made.removed)
        known = (real or theirs) and not is_below(name, self._gone)
        return None if known else _like(path, self.copy_of(name))

    def belongs(self, name: str) -> bool:
        return self.has(name) or super().belongs(name)

    def is_hidden(self, name: str) -> bool:
        """Whether the script, if it ran alone, would not find the real file."""
        return is_below(name, self._gone) or self._made.has(name)

    def made_by_first(self, path: Any) -> str | None:
        """Return where this worker's copy would be of a file that the first worker made."""
        if not self._made.names() or (name := self.name_of(path)) is None:
            return None
        return self.copy_of(name) if self._made.has(name) else None

    def hidden_in(self, folder: str) -> set[str]:
        """Return the names of real files in this folder that the script must not see."""
        names = self._gone | self._made.names()
        return {os.path.basename(name) for name in names if os.path.dirname(name) == folder}  # noqa: PTH119, PTH120

    # -- reading -----------------------------------------------------------------------------

    def read(self, path: Any) -> Any:
        """Return what to read in place of ``path``: this worker's copy, or the real file, even one
        that the first worker has made: by its own loss, this worker may not have saved."""
        name = self.name_of(path)
        if name is None:
            return path
        mode = _mode(self.copy_of(name), follow=False)
        if mode is None and not is_below(name, self._gone):
            return _like(path, name) if self._moved_in else path
        ours, real = stat.S_ISDIR(mode or 0), not self.is_hidden(name)
        if ours and real and stat.S_ISDIR(_mode(name) or 0):
            return _like(path, name)  # our folder has only a part of it
        return _like(path, self.copy_of(name))

    def is_folder(self, path: Any) -> bool:
        return stat.S_ISDIR(_mode(self.read(path)) or 0)

    # -- changing ----------------------------------------------------------------------------

    def written(self, path: Any, keep: bool = False) -> Any:
        """Return what to write in place of ``path``; with ``keep``, a copy is made first."""
        name = self.name_of(path)
        if name is None:
            return path
        mode = _mode(name)
        if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return path  # it is a pipe, a socket or a device
        copy = self.copy_of(name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)  # noqa: PTH103, PTH120
        if keep and not self.has(name) and mode is not None and not self.is_hidden(name):
            shutil.copyfile(name, copy)
        return _like(path, copy)

    def removed(self, path: Any) -> None:
        if (name := self.name_of(path)) is not None:
            self._gone.add(name)


def _mode(path: Any, follow: bool = True) -> int | None:
    try:
        return (_stat if follow else lstat)(path).st_mode
    except (OSError, ValueError):
        return None


def exists(name: str) -> bool:
    """Whether the file really exists, whatever the script sees."""
    return _mode(name, follow=False) is not None


def _like(path: Any, name: str) -> Any:
    return type(path)(name) if isinstance(path, PurePath) else name
