"""One level of a worker's roll-up: rows of 1, 10 or 60 seconds, in a file and in memory."""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from phalanx.observe.rollups.rows import ROW_BYTES, WIDTH, RowColumn, Rows, merge, no_rows

_WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


class Level:
    """Rows of ``width`` seconds. Only the last is still open: steps may be added to it."""

    def __init__(self, width: int, path: Path) -> None:
        self.width = width
        self.last = no_rows()
        """The open row, if there is one."""
        self.check = 0
        """The checksum of the rows in the file."""
        self._path = path
        self._began = np.empty(0)
        """When each row in the file began."""
        self._waiting = no_rows()
        """Closed rows that are not in the file."""

    @property
    def written(self) -> int:
        return len(self._began)

    def load(self, written: int, check: int, last: Rows) -> None:
        """Go on from a file of ``written`` rows; raise an error if it is not as it was written."""
        rows = self._read(0, written)
        if zlib.crc32(rows.tobytes()) != check:
            raise OSError("wrong rows")
        self._began = rows[:, RowColumn.BEGAN].copy()
        self.check, self.last = check, last

    def add(self, rows: Rows) -> None:
        rows = np.concatenate([self.last, rows])
        found = merge(rows, rows[:, RowColumn.BEGAN] // self.width)
        self.last = found[-1:].copy()
        if len(found) > 1:
            self._waiting = np.concatenate([self._waiting, found[:-1]])

    def write(self) -> None:
        """Write the closed rows. If that fails, they are kept."""
        if not len(self._waiting):
            return
        data = self._waiting.tobytes()
        end = self.written * ROW_BYTES
        with plain_file(self._path, _WRITE) as file:
            if os.fstat(file).st_size < end or os.pwrite(file, data, end) != len(data):
                raise OSError("the file is not as it was left, or the disk is full")
        self.check = zlib.crc32(data, self.check)
        self._began = np.append(self._began, self._waiting[:, RowColumn.BEGAN])
        self._waiting = no_rows()

    def between(self, first: float, last: float) -> Rows:
        """Return the rows that began between two times, with those beside them."""
        low, high = np.searchsorted(self._began, (first, last))
        rows = self._read(max(0, low - 1), min(high + 1, self.written))
        rows = np.concatenate([rows, self._waiting, self.last])
        low, high = np.searchsorted(rows[:, RowColumn.BEGAN], (first, last))
        return rows[max(0, low - 1) : high + 1]

    def _read(self, low: int, high: int) -> Rows:
        if low >= high:
            return no_rows()
        with plain_file(self._path) as file:
            data = os.pread(file, (high - low) * ROW_BYTES, low * ROW_BYTES)
        if len(data) != (high - low) * ROW_BYTES:
            raise OSError("too few rows")
        return np.frombuffer(data).reshape(-1, WIDTH)


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
