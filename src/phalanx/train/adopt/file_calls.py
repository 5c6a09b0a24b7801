"""What becomes of a call that reads, writes or changes files, on a worker that keeps its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from phalanx.train.adopt.calling_code import caller_of
from phalanx.train.adopt.private_files import PrivateFiles

_NOTE = (
    "phalanx: the files that the script writes in this worker are kept apart and removed at the "
    "end: the first worker writes the real ones"
)


@dataclass(frozen=True)
class Call:
    files: PrivateFiles
    plain: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    frame: FrameType

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def with_argument(self, position: int, name: str, value: Any) -> Any:
        """Make it, with another value there."""
        if len(self.args) > position:
            changed = [*self.args]
            changed[position] = value
            return self.plain(*changed, **self.kwargs)
        return self.plain(*self.args, **{**self.kwargs, name: value})

    def as_it_is(self) -> Any:
        return self.plain(*self.args, **self.kwargs)

    def takes(self, *paths: Any, always: bool = False) -> bool:
        """Whether it changes files of the script's, which are ours to keep."""
        files = self.files
        names = [name for path in paths if (name := files.name_of(path)) is not None]
        if not names or (caller := caller_of(self.frame)) == "ours":
            return False
        if not always and caller != "script" and not any(map(files.belongs, names)):
            return False
        if not files.noted:
            files.noted = True
            print(_NOTE, file=sys.stderr, flush=True)
        return True


Act = Callable[[Call], Any]


def reads(position: int, name: str) -> Act:
    def act(call: Call) -> Any:
        given = call.argument(position, name)
        found = call.files.read(given)
        return call.as_it_is() if found is given else call.with_argument(position, name, found)

    return act


def writes(position: int, name: str, always: bool = False, keep: bool = False) -> Act:
    """``always``: also if a library calls it, for what the script trains."""

    def act(call: Call) -> Any:
        given = call.argument(position, name)
        if not call.takes(given, always=always):
            return call.as_it_is()
        return call.with_argument(position, name, call.files.written(given, keep))

    return act


def opens(position: int, name: str) -> Act:
    """Reads or writes: the next argument is the mode."""
    read, write = reads(position, name), writes(position, name)
    change = writes(position, name, keep=True)

    def act(call: Call) -> Any:
        mode = str(call.argument(position + 1, "mode", "r"))
        if "w" in mode or "x" in mode:
            return write(call)
        return change(call) if "a" in mode or "+" in mode else read(call)

    return act


def makes_folder(call: Call) -> Any:
    path = call.argument(0, "path")
    if not call.takes(path):
        return call.as_it_is()
    call.files.made(path)
    return call.with_argument(0, "path", call.files.written(path))


def removes(call: Call) -> Any:
    """The script's own; of the real ones, this worker only believes it."""
    path = call.argument(0, "path")
    if not call.takes(path):
        return call.as_it_is()
    copy = call.files.existing_copy(path)
    call.files.removed(path)
    return None if copy is None else call.with_argument(0, "path", copy)


def changes(call: Call) -> Any:
    """Properties of a file."""
    path = call.argument(0, "path")
    if not call.takes(path):
        return call.as_it_is()
    copy = call.files.existing_copy(path)
    return None if copy is None else call.with_argument(0, "path", copy)


def renames(call: Call) -> Any:
    source, target = call.argument(0, "src"), call.argument(1, "dst")
    if not call.takes(target, source):
        return call.as_it_is()
    into = call.plain.__name__ == "move" and call.files.is_folder(target)
    target = os.path.join(target, os.path.basename(source)) if into else target  # noqa: PTH118, PTH119
    copy, files = call.files.existing_copy(source), call.files
    if copy is not None or files.name_of(source) is None:
        shutil.move(copy or source, files.written(target))
    else:
        with suppress(FileNotFoundError):  # the first worker may have moved it already
            _copy(files.read(source), files.written(target))
    files.removed(source)
    return target if call.plain.__name__ == "move" else None


def _copy(source: Any, target: Any) -> None:
    if os.path.isdir(source):  # noqa: PTH112
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def copies(call: Call) -> Any:
    source, target = call.argument(0, "src"), call.argument(1, "dst")
    rest = {name: value for name, value in call.kwargs.items() if name not in ("src", "dst")}
    found = call.files.read(source)
    if not call.takes(target):
        return call.plain(found, target, *call.args[2:], **rest)
    if call.plain.__name__ in ("copy", "copy2") and call.files.is_folder(target):
        target = os.path.join(target, os.path.basename(source))  # noqa: PTH118, PTH119
    return call.plain(found, call.files.written(target), *call.args[2:], **rest)


def leaves_alone(call: Call) -> Any:
    """A temporary file has a name that no other worker uses."""
    folder = call.kwargs.get("dir")
    kwargs = call.kwargs if folder is None else {**call.kwargs, "dir": call.files.read(folder)}
    made = call.plain(*call.args, **kwargs)
    name = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
    if isinstance(name, str):
        call.files.leave_alone(name)
    return made


# -- what is in a folder ---------------------------------------------------------------------


def lists(call: Call) -> Any:
    path = call.argument(0, "path") or "."
    if (found := _both(call, path, _names)) is None:
        return call.as_it_is()
    return list(found)


def scans(call: Call) -> Any:
    path = call.argument(0, "path") or "."
    if (found := _both(call, path, _entries)) is None:
        return call.as_it_is()
    return _Scan(_Entry(entry, os.path.join(path, name)) for name, entry in found.items())  # noqa: PTH118


def _both(
    call: Call, path: Any, look: Callable[[Call, str], dict[str, Any]]
) -> dict[str, Any] | None:
    """The real ones and ours, by name; ``None`` where there are only real ones."""
    files, name = call.files, call.files.name_of(path)
    if name is None or not (files.has(name) or files.is_changed()):
        return None
    own = look(call, files.copy_of(name)) if files.has(name) else {}
    try:
        real = look(call, name)
    except OSError:
        if not files.has(name):
            raise
        real = {}
    kept = {n: found for n, found in real.items() if not files.is_gone(os.path.join(name, n))}  # noqa: PTH118
    return {**kept, **own}


def _names(call: Call, folder: str) -> dict[str, Any]:
    return dict.fromkeys(call.plain(folder))


def _entries(call: Call, folder: str) -> dict[str, Any]:
    with call.plain(folder) as found:
        return {entry.name: entry for entry in found}


class _Entry:
    """As ``os.DirEntry``, under the name by which the script knows it."""

    def __init__(self, entry: Any, path: str) -> None:
        self._entry, self.path = entry, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> str:
        return self.path


class _Scan(Iterator[_Entry]):
    """As what ``os.scandir`` returns."""

    def __init__(self, found: Iterable[_Entry]) -> None:
        self._found = iter(found)

    def __next__(self) -> _Entry:
        return next(self._found)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._found = iter(())
