"""Rows of a roll-up: what the steps of one worker in a stretch of time are in sum.

A row is a row of numbers (``Column``). A single step is a row too, so steps are merged into
seconds, seconds into tens of seconds and these into minutes by the same rule.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
"""Rows in the order of time, with the columns of ``Column``."""


class Column(IntEnum):
    """The numbers of a row. Times are seconds of the run's clock."""

    INDEX = 0
    """The row's place in time: the number of its stretch since the clock was 0."""
    BEGAN = 1
    PLACE = 2
    """Where in the file of events the line of its first step begins."""
    OPENS = 3
    """1 if the worker joined just before: it has no steps between the row before and this one."""
    SHIFT = 4
    """Seconds that were added to the times in the file, because its clock went back."""
    STEPS = 5
    ROUNDS = 6
    SAMPLES = 7
    INPUT = 8
    COMPUTE = 9
    SEND = 10
    WAIT = 11
    REDUCE = 12
    UPDATE = 13
    SETTLE = 14
    HIDDEN = 15
    """Communication beside the computing, which took no time of its own."""
    OTHER = 16
    """The script's own time between steps of this row."""
    LOSS = 17
    """Losses times samples; divided by ``WEIGHT``, it is the mean loss."""
    WEIGHT = 18
    """Samples of steps whose loss is known."""
    STALENESS = 19
    LOW = 20
    """The least loss of a step; NaN if none is known."""
    HIGH = 21
    STALEST = 22
    ENDED = 23
    NUMBER = 24
    """The worker's steps since the run began, those of this row included."""
    EPOCH = 25
    """The epoch of the last step."""
    TURNED = 26
    """When this worker began that epoch."""
    UNTIL = 27
    """Where in the file of events the line of its last step ends."""
    CHECK = 28


WIDTH = len(Column)
ROW_BYTES = 8 * WIDTH
PARTS = slice(Column.INPUT, Column.SETTLE + 1)
"""The durations of a step, in their order."""
_FIRSTS = slice(Column.INDEX, Column.SHIFT + 1)
_SUMS = slice(Column.STEPS, Column.STALENESS + 1)
_MOST = slice(Column.HIGH, Column.STALEST + 1)
_LASTS = slice(Column.ENDED, Column.UNTIL + 1)
_FACTORS = np.arange(1, WIDTH, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
_SEED = np.uint64(0x5048414C414E5831)
"""Otherwise a row of zeros would be sound."""


def no_rows() -> Rows:
    return np.empty((0, WIDTH))


def merge(rows: Rows, index: NDArray[np.float64]) -> Rows:
    """Make one row of neighbours that have the same ``index``."""
    if not len(rows):
        return rows
    starts = np.flatnonzero(np.diff(index, prepend=index[0] - 1))
    lasts = np.append(starts[1:], len(rows)) - 1
    found = np.zeros((len(starts), WIDTH))
    found[:, _FIRSTS] = rows[starts, _FIRSTS]
    found[:, Column.INDEX] = index[starts]
    found[:, _SUMS] = np.add.reduceat(rows[:, _SUMS], starts)
    found[:, Column.LOW] = np.fmin.reduceat(rows[:, Column.LOW], starts)
    found[:, _MOST] = np.fmax.reduceat(rows[:, _MOST], starts)
    found[:, _LASTS] = rows[lasts, _LASTS]
    between = np.zeros(len(rows))
    between[1:] = gaps(rows)
    between[starts] = 0.0
    found[:, Column.OTHER] += np.add.reduceat(between, starts)
    return found


def gaps(rows: Rows) -> NDArray[np.float64]:
    """Return the script's own seconds between each row and the next."""
    apart = rows[1:, Column.BEGAN] - rows[:-1, Column.ENDED]
    return np.where(rows[1:, Column.OPENS] > 0, 0.0, np.maximum(apart, 0.0))


def seal(rows: Rows) -> Rows:
    """Return the rows with their check numbers."""
    sealed = np.ascontiguousarray(rows)
    sealed.view(np.uint64)[:, Column.CHECK] = _checks(sealed)
    return sealed


def are_sound(rows: Rows) -> bool:
    """Whether these rows, which were read from a file, are as they were written."""
    if not np.array_equal(rows.view(np.uint64)[:, Column.CHECK], _checks(rows)):
        return False
    keys = rows[:, [*range(Column.INDEX, Column.SHIFT + 1), *range(Column.ENDED, Column.CHECK)]]
    return bool(np.all(np.isfinite(keys)) and np.all(np.diff(rows[:, Column.INDEX]) > 0))


def _checks(rows: Rows) -> NDArray[np.uint64]:
    bits = rows.view(np.uint64)[:, : Column.CHECK]
    checks: NDArray[np.uint64] = (bits * _FACTORS).sum(axis=1, dtype=np.uint64) ^ _SEED
    return checks
