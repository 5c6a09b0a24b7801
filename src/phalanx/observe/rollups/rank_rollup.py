"""The roll-up of one worker: reads what its file of events has new, and keeps where it was.

``rank-N.state`` says up to where the events were read, and has what is still open; it is written
after the rows that it counts. If it does not fit to the events or the rows, both are made anew.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

import msgspec
import numpy as np

from phalanx.core.files import TooLarge, read_bounded, write_whole
from phalanx.observe.rollups.level import Level, plain_file
from phalanx.observe.rollups.rows import WIDTH, RowColumn, Rows, no_rows
from phalanx.observe.rollups.step_lines import StepsTold, rows_of

WIDTHS = (1, 10, 60)
"""Seconds of a row of each level."""
VERSION = 2
BLOCK = 1 << 20
"""Bytes that are read at once. A longer line is left out: workers write several a second."""
_TAIL = 64
"""The last bytes that were read are kept, to see whether the file is still the same."""
_LARGEST_STATE = 16 << 20


class _State(msgspec.Struct, array_like=True):
    offset: int
    tail: bytes
    told: StepsTold
    levels: list[tuple[int, int, bytes]]
    """Of each: the rows in its file, their checksum, and its open row."""


class RankRollup:
    """The steps of one worker, in rows of 1, 10 and 60 seconds, or each of its own."""

    def __init__(self, rank: int, events: Path, folder: Path) -> None:
        self.size = 0
        """Bytes of the file of events when it was last looked at."""
        self.pending = True
        """Whether there are probably more lines to read."""
        self._events = events
        self._files = [folder / f"rank-{rank}.{width}s" for width in WIDTHS]
        self._state_file = folder / f"rank-{rank}.state"
        self._begin()
        with contextlib.suppress(OSError, ValueError, TooLarge, msgspec.MsgspecError):
            self._load()

    def _begin(self) -> None:
        """Begin with the first event, as if there were no roll-up."""
        self.offset = self._saved = 0
        self.told = StepsTold()
        self._tail = b""
        self._levels = list(map(Level, WIDTHS, self._files))
        self.pending = True

    # -- reading the events ------------------------------------------------------------------

    def read(self) -> bool:
        """Read a block of new lines; return whether anything changed."""
        self.pending = False
        with contextlib.suppress(OSError), plain_file(self._events) as file:
            self.size = os.fstat(file).st_size
            kept = len(self._tail)
            data = os.pread(file, BLOCK + kept, self.offset - kept)
            if not data.startswith(self._tail):
                self._begin()  # another file is in its place
                return True
            self.pending = len(data) == BLOCK + kept
            end = data.rfind(b"\n", kept) + 1 or (len(data) if self.pending else kept)
            lines = data[kept:end].removesuffix(b"\n").split(b"\n")
            rows = rows_of(lines, self.offset, self.told)
            for level in self._levels:
                level.add(rows)
            self._tail = data[:end][-_TAIL:]
            self.offset += end - kept
            return end > kept
        return False

    # -- rows --------------------------------------------------------------------------------

    def rows(self, width: int, first: float, last: float) -> Rows:
        """Return the rows of ``width`` seconds between two times, with those beside them."""
        try:
            return self._levels[WIDTHS.index(width)].between(first, last)
        except OSError:
            self._begin()
            return no_rows()

    def step_bytes(self, first: float, last: float) -> int:
        """Return how many bytes of events ``steps`` would read."""
        rows = self.rows(WIDTHS[0], first, last)
        return int(rows[-1, RowColumn.UNTIL] - rows[0, RowColumn.PLACE]) if len(rows) else 0

    def steps(self, first: float, last: float) -> Rows:
        """Return each step between two times, with those of some seconds around them."""
        around = self.rows(WIDTHS[0], first, last)
        if not len(around):
            return around
        low, high = int(around[0, RowColumn.PLACE]), int(around[-1, RowColumn.UNTIL])
        data = b""
        with contextlib.suppress(OSError), plain_file(self._events) as file:
            data = os.pread(file, high - low, low)
        told = StepsTold(joins=bool(around[0, RowColumn.OPENS]))
        rows = rows_of(data.removesuffix(b"\n").split(b"\n"), low, told)
        rows = rows[np.searchsorted(rows[:, RowColumn.BEGAN], around[0, RowColumn.BEGAN]) :]
        before = around[0, RowColumn.NUMBER] - around[0, RowColumn.STEPS]
        rows[:, RowColumn.NUMBER] = before + np.cumsum(rows[:, RowColumn.STEPS])
        return rows

    # -- saving ------------------------------------------------------------------------------

    def save(self) -> None:
        """Write what is not written yet. If that fails, everything is kept in memory."""
        if self._saved == self.offset:
            return
        with contextlib.suppress(OSError):
            for level in self._levels:
                level.write()
            levels = [(one.written, one.check, one.last.tobytes()) for one in self._levels]
            state = _State(self.offset, self._tail, self.told, levels)
            data = msgspec.msgpack.encode(state)
            write_whole(self._state_file, _check(data) + data)
            self._saved = self.offset

    def _load(self) -> None:
        """Go on from what was saved; whether it fits to the events is seen when they are read."""
        content = read_bounded(self._state_file, _LARGEST_STATE)
        if content[:4] != _check(content[4:]):
            return
        state = msgspec.msgpack.decode(content[4:], type=_State)
        levels = list(map(Level, WIDTHS, self._files))
        for level, (written, check, last) in zip(levels, state.levels, strict=True):
            level.load(written, check, np.frombuffer(last).reshape(-1, WIDTH))
        self._levels, self.told = levels, state.told
        self.offset = self._saved = state.offset
        self._tail = state.tail


def _check(data: bytes) -> bytes:
    """Return a checksum, which no other version has."""
    return zlib.crc32(data, VERSION).to_bytes(4, "little")
