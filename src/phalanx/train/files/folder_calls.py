"""What is in a folder, for a worker that keeps its own files: the real ones and its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

from phalanx.train.files.file_calls import Act, Private


def _lists(call: Private) -> Any:
    path = call.argument(0, "path") or "."
    if (found := _both(call, path, _names)) is None:
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
    """The real ones and ours, by name; ``None`` where it is the real ones, and all of them."""
    files, name = call.files, call.files.name_of(path)
    if name is None:
        return None
    hidden, real_hidden = files.hidden_in(name), files.is_hidden(name)
    ours = real_hidden or files.has(name)
    if not ours and not hidden:
        return None
    # An error, where the script would get one.
    own = look(call, files.copy_of(name)) if ours else {}
    real: dict[str, Any] = {}
    if not real_hidden:
        with suppress(OSError) if files.has(name) else nullcontext():
            real = look(call, name)
    return {**{n: found for n, found in real.items() if n not in hidden}, **own}


def _names(call: Private, folder: str) -> dict[str, Any]:
    return dict.fromkeys(call.plain(folder))


def _entries(call: Private, folder: str) -> dict[str, Any]:
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


lists = Act(_lists)
scans = Act(_scans)
