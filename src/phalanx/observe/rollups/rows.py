"""Rows of a roll-up: what the steps of one worker in a stretch of time are in sum.

A row is a row of numbers (``RowColumn``). A single step is a row too, so steps are merged into
seconds, seconds into tens of seconds and these into minutes by the same rule.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
"""Rows in the order of time, with the columns of ``RowColumn``."""


class RowColumn(IntEnum):
    """The numbers of a row. Times are seconds of the run's clock."""

    INDEX = 0
    """The row's place in time: the number of its stretch since the clock was 0."""
    BEGAN = 1
    PLACE = 2
    """Where in the file of events the line of its first step begins."""
    OPENS = 3
    """1 if the worker joined just before: it has no steps between the row before and this one."""
    STEPS = 4
    ROUNDS = 5
    SAMPLES = 6
    INPUT = 7
    COMPUTE = 8
    SEND = 9
    WAIT = 10
    REDUCE = 11
    UPDATE = 12
    SETTLE = 13
    HIDDEN = 14
    """Communication beside the computing, which took no time of its own."""
    OTHER = 15
    """The script's own time between steps of this row."""
    LOSS = 16
    """Losses times samples; divided by ``WEIGHT``, it is the mean loss."""
    WEIGHT = 17
    """Samples of steps whose loss is known."""
    STALENESS = 18
    LOW = 19
    """The least loss of a step; NaN if none is known."""
    HIGH = 20
    STALEST = 21
    ENDED = 22
    NUMBER = 23
    """The worker's steps since the run began, those of this row included."""
    EPOCH = 24
    """The epoch of the last step."""
    TURNED = 25
    """When this worker began that epoch."""
    UNTIL = 26
    """Where in the file of events the line of its last step ends."""
    CHECK = 27


WIDTH = len(RowColumn)
ROW_BYTES = 8 * WIDTH
PARTS = slice(RowColumn.INPUT, RowColumn.SETTLE + 1)
"""The durations of a step, in their order."""
_FIRSTS = slice(RowColumn.INDEX, RowColumn.OPENS + 1)
_SUMS = slice(RowColumn.STEPS, RowColumn.STALENESS + 1)
_MOST = slice(RowColumn.HIGH, RowColumn.STALEST + 1)
_LASTS = slice(RowColumn.ENDED, RowColumn.UNTIL + 1)
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
    found[:, RowColumn.INDEX] = index[starts]
    found[:, _SUMS] = np.add.reduceat(rows[:, _SUMS], starts)
    found[:, RowColumn.LOW] = np.fmin.reduceat(rows[:, RowColumn.LOW], starts)
    found[:, _MOST] = np.fmax.reduceat(rows[:, _MOST], starts)
    found[:, _LASTS] = rows[lasts, _LASTS]
    between = np.zeros(len(rows))
    between[1:] = gaps(rows)
    between[starts] = 0.0
    found[:, RowColumn.OTHER] += np.add.reduceat(between, starts)
    return found


def gaps(rows: Rows) -> NDArray[np.float64]:
    """Return the script's own seconds between each row and the next."""
    apart = rows[1:, RowColumn.BEGAN] - rows[:-1, RowColumn.ENDED]
    return np.where(rows[1:, RowColumn.OPENS] > 0, 0.0, np.maximum(apart, 0.0))


def seal(rows: Rows) -> Rows:
    """Return the rows with their check numbers."""
    sealed = np.ascontiguousarray(rows)
    sealed.view(np.uint64)[:, RowColumn.CHECK] = _checks(sealed)
    return sealed


def are_sound(rows: Rows) -> bool:
    """Whether these rows, which were read from a file, are as they were written."""
    if not np.array_equal(rows.view(np.uint64)[:, RowColumn.CHECK], _checks(rows)):
        return False
    keys = rows[
        :, [*range(RowColumn.INDEX, RowColumn.OPENS + 1), *range(RowColumn.ENDED, RowColumn.CHECK)]
    ]
    return bool(np.all(np.isfinite(keys)) and np.all(np.diff(rows[:, RowColumn.INDEX]) > 0))


def _checks(rows: Rows) -> NDArray[np.uint64]:
    bits = rows.view(np.uint64)[:, : RowColumn.CHECK]
    checks: NDArray[np.uint64] = (bits * _FACTORS).sum(axis=1, dtype=np.uint64) ^ _SEED
    return checks
