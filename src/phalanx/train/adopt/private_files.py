"""``PrivateFiles``: a folder over the real ones, for a worker that must not change those.

What is written lies below ``root`` under its whole name. What is read comes from there if it is
there, and from its real place if not.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import PurePath
from typing import Any

_stat = os.stat  # as they are: what is put in their place asks us
_lstat = os.lstat
_NO_FILES = ("/dev/", "/proc/", "/sys/")


class PrivateFiles:
    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self._gone: set[str] = set()
        """Real files that the script has removed, or so it believes."""
        self._own: tuple[str, ...] = ()
        self._made: set[str] = set()
        self.noted = False
        """Whether it was said that there is such a folder."""

    def leave_alone(self, path: str) -> None:
        """No other worker has this one: the name of a temporary file, or folder."""
        self._own = (*self._own, os.path.abspath(path))  # noqa: PTH100

    # -- names -------------------------------------------------------------------------------

    def name_of(self, path: Any) -> str | None:
        """The whole name; ``None`` where it is no file, or of no other worker."""
        if not isinstance(path, str | PurePath) or not str(path):
            return None
        name = os.path.abspath(path)  # noqa: PTH100
        if self._within(name, self.root):
            if os.path.isabs(path):  # noqa: PTH117
                return None
            name = name[len(self.root) :] or "/"  # the script has gone into a folder of its own
        if name.startswith(_NO_FILES) or any(self._within(name, own) for own in self._own):
            return None
        return name

    def copy_of(self, name: str) -> str:
        return self.root + name

    def has(self, name: str) -> bool:
        return _mode(self.copy_of(name), follow=False) is not None

    def is_gone(self, name: str) -> bool:
        return bool(self._gone) and not self._gone.isdisjoint(_with_parents(name))

    def is_changed(self) -> bool:
        return bool(self._gone)

    def belongs(self, name: str) -> bool:
        """Whether it is ours whoever writes it: again, or in a folder that the script has made."""
        return self.has(name) or not self._made.isdisjoint(_with_parents(name))

    def existing_copy(self, path: Any) -> Any:
        name = self.name_of(path)
        return _like(path, self.copy_of(name)) if name is not None and self.has(name) else None

    # -- reading -----------------------------------------------------------------------------

    def read(self, path: Any) -> Any:
        """What to read in place of ``path``."""
        name = self.name_of(path)
        if name is None:
            return path
        mode = _mode(self.copy_of(name), follow=False)
        if mode is None and not self.is_gone(name):
            return path if os.path.abspath(path) == name else _like(path, name)  # noqa: PTH100
        if mode is not None and stat.S_ISDIR(mode) and self._real_folder(name):
            return _like(path, name)  # ours has a part of it
        return _like(path, self.copy_of(name))

    def _real_folder(self, name: str) -> bool:
        mode = None if self.is_gone(name) else _mode(name)
        return mode is not None and stat.S_ISDIR(mode)

    def is_folder(self, path: Any) -> bool:
        mode = _mode(self.read(path))
        return mode is not None and stat.S_ISDIR(mode)

    # -- changing ----------------------------------------------------------------------------

    def written(self, path: Any, keep: bool = False) -> Any:
        """What to write in place of ``path``, which begins as it is with ``keep``."""
        name = self.name_of(path)
        if name is None or _is_special(name):
            return path
        copy = self.copy_of(name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)  # noqa: PTH103, PTH120
        if keep and not self.is_gone(name) and not self.has(name) and _mode(name) is not None:
            shutil.copyfile(name, copy)
        return _like(path, copy)

    def removed(self, path: Any) -> None:
        if (name := self.name_of(path)) is not None:
            self._gone.add(name)

    def made(self, path: Any) -> None:
        """A folder, by the script."""
        if (name := self.name_of(path)) is not None:
            self._made.add(name)

    @staticmethod
    def _within(name: str, folder: str) -> bool:
        return name == folder or name.startswith(folder + "/")


def _mode(path: Any, follow: bool = True) -> int | None:
    try:
        return (_stat if follow else _lstat)(path).st_mode
    except (OSError, ValueError):
        return None


def _is_special(name: str) -> bool:
    """A pipe, a socket, a device."""
    mode = _mode(name)
    return mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _with_parents(name: str) -> list[str]:
    return [name, *map(str, PurePath(name).parents)]


def _like(path: Any, name: str) -> Any:
    return type(path)(name) if isinstance(path, PurePath) else name
