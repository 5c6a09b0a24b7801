"""One level of a worker's roll-up: rows of 1, 10 or 60 seconds, in a file and in memory.

The file is never trusted. Whatever is wrong with it is an ``OSError``, and it is made anew.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from phalanx.observe.rollups.rows import (
    ROW_BYTES,
    WIDTH,
    RowColumn,
    Rows,
    are_sound,
    merge,
    no_rows,
    seal,
)

_WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


class Level:
    """Rows of ``width`` seconds. Only the last is still open: steps may be added to it."""

    def __init__(self, width: int, path: Path, written: int = 0, last: Rows | None = None) -> None:
        self.width = width
        self.written = written
        """Rows in the file."""
        self.last = no_rows() if last is None else last
        """The open row, if there is one."""
        self._path = path
        self._waiting: list[Rows] = []
        """Closed rows that are not in the file yet."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting))

    def add(self, rows: Rows, width: int) -> Rows:
        """Add rows of a finer ``width``; return those of this level that were closed by them."""
        if not len(rows):
            return rows
        index = rows[:, RowColumn.INDEX] * width // self.width
        index = np.maximum.accumulate(np.append(self.last[:, RowColumn.INDEX], index))
        found = merge(np.concatenate([self.last, rows]), index)
        self.last, closed = found[-1:].copy(), found[:-1]
        if len(closed):
            self._waiting.append(closed)
        return closed

    def write(self) -> None:
        """Write the closed rows. If that fails, they are kept."""
        if not self._waiting:
            return
        rows = seal(np.concatenate(self._waiting))
        left, at = memoryview(rows.tobytes()), self.written * ROW_BYTES
        self._waiting = [rows]
        with plain_file(self._path, _WRITE) as file:
            while left:
                done = os.pwrite(file, left, at)
                left, at = left[done:], at + done
        self.written += len(rows)
        self._waiting = []

    def between(self, first: float, last: float) -> Rows:
        """Return the rows with an index from ``first`` to ``last``, with those beside them."""
        found = [*self._waiting, self.last]
        if self.written and not (self._waiting and self._waiting[0][0, RowColumn.INDEX] < first):
            found.insert(0, self._from_file(first, last))
        rows = np.concatenate(found)
        low, high = np.searchsorted(rows[:, RowColumn.INDEX], (first, last + 1))
        return rows[max(0, low - 1) : high + 1]

    def _from_file(self, first: float, last: float) -> Rows:
        with plain_file(self._path) as file:
            if os.fstat(file).st_size < self.written * ROW_BYTES:
                raise OSError("too few rows")
            low, high = self._find(file, first), self._find(file, last + 1)
            low, high = max(0, low - 1), min(high + 1, self.written)
            data = os.pread(file, (high - low) * ROW_BYTES, low * ROW_BYTES)
        rows = np.frombuffer(data[: len(data) // ROW_BYTES * ROW_BYTES]).reshape(-1, WIDTH)
        if len(rows) != high - low or not are_sound(rows):
            raise OSError("wrong rows")
        return rows

    def _find(self, file: int, index: float) -> int:
        """Return the place of the first row in the file whose index is at least ``index``."""
        low, high = 0, self.written
        while low < high:
            middle = (low + high) // 2
            (found,) = struct.unpack("=d", os.pread(file, 8, middle * ROW_BYTES))
            low, high = (middle + 1, high) if found < index else (low, middle)
        return low


@contextlib.contextmanager
def plain_file(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a plain file; raise an error for anything else."""
    number = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError("not a plain file")
        yield number
    finally:
        os.close(number)
