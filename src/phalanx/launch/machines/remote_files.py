"""Writes the events, logs and samples that agents send where a local run would have written them.

A machine is not trusted: it writes the files of its own ranks, in order, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from phalanx.core import words
from phalanx.core.files import LARGEST_LOG
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.shipping.home.incoming import folder_below
from phalanx.observe.machines.monitor import SampleReader, ToldSample

LARGEST = 4 << 30
"""Most bytes of one file; what a machine sends beyond that is dropped."""
LARGEST_TRACEBACK = 1 << 20
"""Most bytes of a traceback, because it is read as a whole."""
_LAST_BYTES = 1 << 16


class FileDownload:
    """Writes the files of one machine's ranks, and samples of ``node``, a machine without agent."""

    def __init__(
        self, paths: RunPaths, ranks: Collection[int], say: Callable[[str], None], node: str = ""
    ) -> None:
        self._paths, self._say = paths, say
        self._cut: set[str] = set()
        self._limits = {name: limit for rank in ranks for name, limit in _of_rank(paths, rank)}
        if node:
            self._limits[paths.machine(node).relative_to(paths.folder).as_posix()] = LARGEST
        self.offsets = dict.fromkeys(self._limits, 0)
        """How many bytes of each file have come."""

    def take(self, file: str, offset: int, data: bytes) -> None:
        """Append what is new of a piece; ignore one after a gap, or of another machine's file."""
        done = self.offsets.get(file, 0)
        if file not in self._limits or not 0 <= offset <= done:
            return
        rest = data[done - offset :]
        fresh = rest[: self._limits[file] - done]
        if len(fresh) < len(rest) and file not in self._cut:
            self._cut.add(file)
            self._say(
                f"{file} is too large: only its first {words.size(self._limits[file])} are kept"
            )
        if not fresh:
            return
        _append(self._paths.folder / file, fresh)
        self.offsets[file] = done + len(fresh)

    def know(self) -> dict[str, int]:
        """Return the size of each file that is here already: the machine continues after it."""
        for name in self._limits:
            path = self._paths.folder / name
            self.offsets[name] = path.stat().st_size if path.is_file() else 0
        return self.offsets


def _of_rank(paths: RunPaths, rank: int) -> list[tuple[str, int]]:
    """Return the names of a rank's files, each with the most that is kept of it."""
    files = {
        paths.events_of(rank): LARGEST_LOG,  # more of them would not be read
        paths.log_of(rank): LARGEST,
        paths.traceback_of(rank): LARGEST_TRACEBACK,
    }
    return [(path.relative_to(paths.folder).as_posix(), most) for path, most in files.items()]


class MachineFile:
    """Keeps the samples that the agent of one machine sends, in its file."""

    def __init__(self, path: Path) -> None:
        self.clock_to_run = 0.0
        """Seconds to add to times of the machine's clock, to get the run's."""
        self._path, self._reader = path, SampleReader()
        self._size = path.stat().st_size if path.is_file() else 0

    def hear(self, fields: dict[str, Any]) -> None:
        """Take in a sample that the machine's agent sends."""
        sample = self._reader.read(fields, self.clock_to_run)
        if sample is not None:
            self.add(sample)

    def go_on(self) -> float | None:
        """Continue after the last sample in the file; return its time by the machine's clock."""
        last = self.last()
        if last is None:
            return None
        self._reader.go_on_after(last)
        self.clock_to_run = last.time - last.at
        return last.at

    def add(self, sample: ToldSample) -> None:
        line = msgspec.json.encode(sample) + b"\n"
        if self._size + len(line) > LARGEST:
            return
        _append(self._path, line)
        self._size += len(line)

    def last(self) -> ToldSample | None:
        """Return the last sample in the file; remove an incomplete line, to be sent again."""
        if not self._path.is_file():
            return None
        with self._path.open("r+b") as file:
            self._size = file.seek(0, os.SEEK_END)
            file.seek(max(0, self._size - _LAST_BYTES))
            lines = file.read().splitlines(keepends=True)
            if lines and not lines[-1].endswith(b"\n"):
                self._size -= len(lines.pop())
                file.truncate(self._size)
        found = (_as_told(line) for line in reversed(lines))
        return next((sample for sample in found if sample is not None), None)


def _as_told(line: bytes) -> ToldSample | None:
    try:
        return msgspec.json.decode(line, type=ToldSample)
    except msgspec.DecodeError:
        return None


def _append(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with folder_below(path.parents[1], [path.parent.name]) as folder:
        file = os.open(path.name, flags, 0o644, dir_fd=folder)
        try:
            rest = memoryview(data)
            while rest:  # a disk that becomes full takes only a part
                rest = rest[os.write(file, rest) :]
        finally:
            os.close(file)
