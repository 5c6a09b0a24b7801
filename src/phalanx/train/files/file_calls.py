"""Redirects calls that read, write or change files, in workers that have a folder of their own."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeVar

from phalanx.train.files.calling_code import caller_of
from phalanx.train.files.script_files import FirstFiles, PrivateFiles, ScriptFiles, exists

F = TypeVar("F", bound=ScriptFiles)

_NOTE = (
    "phalanx: the files that the script writes in this worker go to a folder that is removed at "
    "the end; the first worker writes the real ones"
)


@dataclass(slots=True)
class Call(Generic[F]):
    files: F
    plain: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    frame: FrameType

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def with_argument(self, position: int, name: str, value: Any) -> Any:
        """Make the call with another value for this argument."""
        if len(self.args) > position:
            changed = [*self.args]
            changed[position] = value
            return self.plain(*changed, **self.kwargs)
        return self.plain(*self.args, **{**self.kwargs, name: value})

    def as_it_is(self) -> Any:
        return self.plain(*self.args, **self.kwargs)

    def is_of_script(self, *paths: Any, always: bool = False) -> bool:
        """Whether the call changes files of the script."""
        names = [name for path in paths if (name := self.files.name_of(path)) is not None]
        if not names or (caller := caller_of(self.frame)) == "ours":
            return False
        return always or caller == "script" or any(map(self.files.belongs, names))


Private = Call[PrivateFiles]


@dataclass(frozen=True)
class Act:
    """How a call is carried out in a worker other than the first."""

    carry_out: Callable[[Private], Any]
    makes: Callable[[Call[Any]], Any] | None = None
    """Returns the path that the call may make, for the first worker to announce."""
    takes: tuple[int, str] | None = None
    """Position and name of the argument whose file the call may remove."""
    always: bool = False
    """Whether a call from a library counts as the script's: it saves what the script trains."""


def announce(act: Act, call: Call[FirstFiles]) -> None:
    """Tell the other workers that the first one is about to make a new file, or to remove one."""
    if act.takes is not None:
        name = call.files.name_of(path := call.argument(*act.takes))
        if name is not None and exists(name) and call.is_of_script(path):
            call.files.makes(name, removes=True)
    if act.makes is None:
        return
    path = act.makes(call)
    name = call.files.name_of(path)
    if name is None or (exists(name) and act is not makes_folder):
        return
    if call.is_of_script(path, always=act.always):
        if act is makes_folder:
            call.files.folders.add(name)
        if not exists(name):
            call.files.makes(name)


def _kept(call: Private, *paths: Any, always: bool = False) -> bool:
    if not call.is_of_script(*paths, always=always):
        return False
    if not call.files.noted:
        call.files.noted = True
        print(_NOTE, file=sys.stderr, flush=True)
    return True


def reads(position: int, name: str, looks: bool = False) -> Act:
    """Describe a call that reads a file, or with ``looks`` only asks about it."""

    def act(call: Private) -> Any:
        given = call.argument(position, name)
        found = call.files.read(given)
        if found is not given:
            return call.with_argument(position, name, found)
        seen = call.as_it_is()  # first, as the first worker may make the file meanwhile
        nowhere = call.files.made_by_first(given) if looks else None
        return seen if nowhere is None else call.with_argument(position, name, nowhere)

    return Act(act)


def writes(position: int, name: str, always: bool = False, keep: bool = False) -> Act:
    def act(call: Private) -> Any:
        given = call.argument(position, name)
        if not _kept(call, given, always=always):
            return call.as_it_is()
        return call.with_argument(position, name, call.files.written(given, keep))

    return Act(act, lambda call: call.argument(position, name), always=always)


def opens(position: int, name: str) -> Act:
    """Describe a call that reads or writes, as its next argument says: a mode, or flags."""
    read, write = reads(position, name), writes(position, name)
    acts = {"read": read, "write": write, "change": writes(position, name, keep=True)}

    def way(call: Call[Any]) -> str:
        flags = call.argument(position + 1, "flags")
        if isinstance(flags, int):
            if flags & os.O_DIRECTORY or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return "read"  # also O_TMPFILE, whose file has no name
            return "write" if flags & (os.O_TRUNC | os.O_EXCL) else "change"
        mode = str(call.argument(position + 1, "mode", "r"))
        if "w" in mode or "x" in mode:
            return "write"
        return "change" if "a" in mode or "+" in mode else "read"

    def makes(call: Call[Any]) -> Any:
        return None if way(call) == "read" else call.argument(position, name)

    return Act(lambda call: acts[way(call)].carry_out(call), makes)


def _makes_folder(call: Private) -> Any:
    path = call.argument(0, "path")
    if not _kept(call, path):
        return call.as_it_is()
    call.files.folders.add(str(call.files.name_of(path)))
    return call.with_argument(0, "path", call.files.written(path))


def _changes(call: Private, removes: bool = False) -> Any:
    """Change or remove this worker's copy, if it has one; the real file stays as it is."""
    path = call.argument(0, "path")
    if not _kept(call, path):
        return call.as_it_is()
    if (nowhere := call.files.nowhere(path)) is not None:
        return call.with_argument(0, "path", nowhere)  # fails as it would for the script alone
    copy = call.files.existing_copy(path)
    if removes:
        call.files.removed(path)
    return None if copy is None else call.with_argument(0, "path", copy)


def _renames(call: Private) -> Any:
    source, target = call.argument(0, "src"), call.argument(1, "dst")
    if not _kept(call, target, source):
        return call.as_it_is()
    if (nowhere := call.files.nowhere(source)) is not None:
        return call.with_argument(0, "src", nowhere)
    copy, files, target = call.files.existing_copy(source), call.files, _into(call, source, target)
    if copy is not None or files.name_of(source) is None:
        shutil.move(copy or source, files.written(target))
    else:
        with suppress(FileNotFoundError):  # the first worker may have moved it already
            real = files.read(source)
            if os.path.isdir(real):  # noqa: PTH112
                shutil.copytree(real, files.written(target), dirs_exist_ok=True)
            else:
                shutil.copyfile(real, files.written(target))
    files.removed(source)
    return target if call.plain.__name__ == "move" else None


def _into(call: Private, source: Any, target: Any) -> Any:
    """Return the file that ``shutil`` would write: inside ``target``, if that is a folder."""
    if call.plain.__name__ in ("move", "copy", "copy2") and call.files.is_folder(target):
        return os.path.join(target, os.path.basename(source))  # noqa: PTH118, PTH119
    return target


def _copies(call: Private) -> Any:
    source, target = call.argument(0, "src"), call.argument(1, "dst")
    rest = {name: value for name, value in call.kwargs.items() if name not in ("src", "dst")}
    found = call.files.read(source)
    if _kept(call, target):
        target = call.files.written(_into(call, source, target))
    return call.plain(found, target, *call.args[2:], **rest)


def _links(call: Private) -> Any:
    """Copy the file instead of linking it: writing through the link would change the real file."""
    target = call.argument(1, "dst")
    if not _kept(call, target):
        return call.as_it_is()
    if os.path.lexists(target):  # through the redirected lstat: as the script sees it
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    return _copies(replace(call, plain=shutil.copyfile))


def _leaves_alone(call: Private) -> Any:
    """Make a temporary file where the script wants it: no other worker uses its name."""
    folder = call.kwargs.get("dir")
    kwargs = call.kwargs if folder is None else {**call.kwargs, "dir": call.files.read(folder)}
    made = call.plain(*call.args, **kwargs)
    name = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
    if isinstance(name, str):
        call.files.leave_alone(name)
    return made


makes_folder = Act(_makes_folder, lambda call: call.argument(0, "path"))
removes = Act(partial(_changes, removes=True), takes=(0, "path"))
changes = Act(_changes)
renames = Act(_renames, lambda call: call.argument(1, "dst"), (0, "src"))
links = Act(_links, lambda call: call.argument(1, "dst"))
copies = Act(_copies, lambda call: call.argument(1, "dst"))
leaves_alone = Act(_leaves_alone)


def _lists(call: Private) -> Any:
    path = call.argument(0, "path") or "."
    if (found := _both(call, path, lambda own, folder: dict.fromkeys(own.plain(folder)))) is None:
        return call.as_it_is()
    return list(found)


def _scans(call: Private) -> Any:
    path = call.argument(0, "path") or "."
    if (found := _both(call, path, _entries)) is None:
        return call.as_it_is()
    return _Scan(_Entry(entry, os.path.join(path, name)) for name, entry in found.items())  # noqa: PTH118


def _both(
    call: Private, path: Any, look: Callable[[Private, str], dict[str, Any]]
) -> dict[str, Any] | None:
    """Find a folder's real files and this worker's own; ``None`` if there are only real ones."""
    files, name = call.files, call.files.name_of(path)
    if name is None:
        return None
    hidden, real_hidden = files.hidden_in(name), files.is_hidden(name)
    ours = real_hidden or files.has(name)
    if not ours and not hidden:
        return None
    own = look(call, files.copy_of(name)) if ours else {}
    real: dict[str, Any] = {}
    if not real_hidden:
        with suppress(OSError) if files.has(name) else nullcontext():
            real = look(call, name)
    return {**{n: found for n, found in real.items() if n not in hidden}, **own}


def _entries(call: Private, folder: str) -> dict[str, Any]:
    with call.plain(folder) as found:
        return {entry.name: entry for entry in found}


class _Entry:
    """An ``os.DirEntry`` with the path by which the script knows the file."""

    def __init__(self, entry: Any, path: str) -> None:
        self._entry, self.path = entry, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> str:
        return self.path


class _Scan(Iterator[_Entry]):
    """An iterator that can be used like that of ``os.scandir``."""

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


lists = Act(_lists)
scans = Act(_scans)
