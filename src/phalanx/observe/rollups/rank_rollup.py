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

from phalanx.core.files import LONGEST_LINE, TooLarge, read_bounded, write_whole
from phalanx.observe.rollups.level import Level, plain_file
from phalanx.observe.rollups.rows import ROW_BYTES, WIDTH, RowColumn, Rows, merge, no_rows
from phalanx.observe.rollups.step_lines import StepsTold, rows_of

WIDTHS = (1, 10, 60)
"""Seconds of a row of each level."""
VERSION = 1
BLOCK = 1 << 20
"""Bytes that are read at once."""
ENOUGH_ROWS = 2048
"""Closed rows that are written even if nobody asks for it."""
_TAIL = 64
"""The last bytes that were read are kept, to see whether the file is still the same."""
_LARGEST_STATE = 1 << 20


class _State(msgspec.Struct, array_like=True):
    version: int
    offset: int
    tail: bytes
    skips: bool
    told: StepsTold
    written: list[int]
    last: list[bytes]


class RankRollup:
    """The steps of one worker, in rows of 1, 10 and 60 seconds, or each of its own."""

    def __init__(self, rank: int, events: Path, folder: Path) -> None:
        self.rank = rank
        self.size = 0
        """Bytes of the file of events when it was last looked at."""
        self.pending = True
        """Whether there are probably more lines to read."""
        self._events, self._folder = events, folder
        self._state_file = folder / f"rank-{rank}.state"
        self._begin()
        self._load()

    def _begin(self) -> None:
        """Begin with the first event, as if there were no roll-up."""
        self.offset = 0
        self.told = StepsTold()
        self._tail, self._skips = b"", False
        self._levels = [Level(width, self._file(width)) for width in WIDTHS]
        self._near: _Near | None = None
        self._saved = 0

    def _file(self, width: int) -> Path:
        return self._folder / f"rank-{self.rank}.{width}s"

    # -- reading the events ------------------------------------------------------------------

    def read(self) -> bool:
        """Read a block of new lines; return whether there were any."""
        self.pending = False
        with contextlib.suppress(OSError), plain_file(self._events) as file:
            self.size = os.fstat(file).st_size
            if self.size == self.offset:
                return False
            data = self._new_bytes(file)
            return bool(data) and self._take(data)
        return False

    def _new_bytes(self, file: int) -> bytes:
        """Return at least one new line, if there is a complete one."""
        length = BLOCK
        while True:
            found = os.pread(file, length + len(self._tail), self.offset - len(self._tail))
            if self.size < self.offset or not found.startswith(self._tail):
                self._begin()  # another file is in its place
                continue
            data = found[len(self._tail) :]
            self.pending = len(data) == length
            if b"\n" in data or not self.pending or length >= LONGEST_LINE:
                return data
            length *= 4

    def _take(self, data: bytes) -> bool:
        end = data.rfind(b"\n") + 1
        if not end and len(data) < LONGEST_LINE and not self._skips:
            return False  # the line is still being written
        begin = 0
        if self._skips or not end:
            begin = data.find(b"\n") + 1 or len(data)
            self._skips, end = not end, end or len(data)
        lines = data[begin : end - 1].split(b"\n") if end > begin else []
        rows = rows_of(lines, self.offset + begin, self.told)
        self._tail = (self._tail + data[:end])[-_TAIL:]
        self.offset += end
        width = WIDTHS[0]
        for level in self._levels:
            rows = level.add(rows, width)
            width = level.width
        if self._levels[0].waiting >= ENOUGH_ROWS:
            self.save()
        return True

    # -- rows --------------------------------------------------------------------------------

    def rows(self, width: int, first: float, last: float) -> Rows:
        """Return the rows of ``width`` seconds between two times, with those beside them."""
        at = WIDTHS.index(width)
        level = self._levels[at]
        try:
            rows = level.between(np.floor(first / width), np.floor(last / width))
        except OSError:
            self._begin()
            self.pending = True
            return no_rows()
        if not at or (len(rows) and rows[-1, RowColumn.INDEX] < level.last[0, RowColumn.INDEX]):
            return rows
        # What the finer levels have not closed yet belongs to the last row, or follows it.
        finer = self._levels[:at][::-1]
        index = [one.last[:, RowColumn.INDEX] * one.width // width for one in finer]
        places = np.maximum.accumulate(np.concatenate([rows[-1:, RowColumn.INDEX], *index]))
        tail = merge(np.concatenate([rows[-1:], *(one.last for one in finer)]), places)
        return np.concatenate([rows[:-1], tail])

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
        if not 0 <= low < high <= self.offset:
            return no_rows()
        near = self._near
        if near is None or not near.low <= low <= near.high:
            near = self._near = _Near(low, StepsTold(joins=bool(around[0, RowColumn.OPENS])))
        near.read(self._events, high)
        near.forget(low)
        at = int(np.searchsorted(near.rows[:, RowColumn.BEGAN], around[0, RowColumn.BEGAN]))
        rows = near.rows[at:]
        if len(rows):  # the count may have begun anywhere
            before = around[0, RowColumn.NUMBER] - around[0, RowColumn.STEPS]
            near.count_on(before - rows[0, RowColumn.NUMBER] + rows[0, RowColumn.STEPS])
        return rows

    # -- saving ------------------------------------------------------------------------------

    def save(self) -> None:
        """Write what is not written yet. If that fails, everything is kept in memory."""
        if self._saved == self.offset:
            return
        with contextlib.suppress(OSError):
            for level in self._levels:
                level.write()
            self._write_state()

    def _write_state(self) -> None:
        state = _State(
            version=VERSION,
            offset=self.offset,
            tail=self._tail,
            skips=self._skips,
            told=self.told,
            written=[level.written for level in self._levels],
            last=[level.last.tobytes() for level in self._levels],
        )
        data = msgspec.msgpack.encode(state)
        write_whole(self._state_file, zlib.crc32(data).to_bytes(4, "little") + data)
        self._saved = self.offset

    def _load(self) -> None:
        """Go on from what was saved, if it fits to the events."""
        try:
            content = read_bounded(self._state_file, _LARGEST_STATE)
            if zlib.crc32(content[4:]).to_bytes(4, "little") != content[:4]:
                return
            state = msgspec.msgpack.decode(content[4:], type=_State)
            lasts = [_last_row(data) for data in state.last]
            counts = list(zip(state.written, lasts, strict=True))
            if state.version != VERSION or len(counts) != len(WIDTHS):
                return
            with plain_file(self._events) as file:
                self.size = os.fstat(file).st_size
                tail = os.pread(file, len(state.tail), max(0, state.offset - len(state.tail)))
            if not 0 < len(state.tail) <= state.offset <= self.size or tail != state.tail:
                return
            if any(count < 0 or (count and not len(last)) for count, last in counts):
                return
            levels = [
                Level(width, self._file(width), count, last)
                for width, (count, last) in zip(WIDTHS, counts, strict=True)
            ]
            for level in levels:
                level.between(np.inf, np.inf)
        except (OSError, ValueError, TooLarge, msgspec.MsgspecError):
            return
        self._levels, self.told = levels, state.told
        self.offset = self._saved = state.offset
        self._tail, self._skips = state.tail, state.skips


class _Near:
    """The single steps of some part of the events, kept for the next look."""

    def __init__(self, low: int, told: StepsTold) -> None:
        self.low = self.high = low
        self.told, self.rows = told, no_rows()

    def read(self, events: Path, high: int) -> None:
        """Read on to the place ``high``, where a line ends."""
        with contextlib.suppress(OSError), plain_file(events) as file:
            if high > self.high:
                data = os.pread(file, high - self.high, self.high)
                rows = rows_of(data.removesuffix(b"\n").split(b"\n"), self.high, self.told)
                self.rows = np.concatenate([self.rows, rows])
                self.high = high

    def count_on(self, more: float) -> None:
        if more:
            self.rows[:, RowColumn.NUMBER] += more
            self.told.number += more

    def forget(self, low: int) -> None:
        """Keep only the steps of lines from ``low`` on, once there is much to forget."""
        gone = int(np.searchsorted(self.rows[:, RowColumn.PLACE], low))
        if 2 * gone > len(self.rows):
            self.rows, self.low = self.rows[gone:].copy(), low


def _last_row(data: bytes) -> Rows:
    if len(data) not in (0, ROW_BYTES):
        raise ValueError("not one row")
    return np.frombuffer(data).reshape(-1, WIDTH).copy()
