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

    BEGAN = 0
    PLACE = 1
    """Where in the file of events the line of its first step begins."""
    OPENS = 2
    """1 if the worker joined just before: it has no steps between the row before and this one."""
    STEPS = 3
    ROUNDS = 4
    SAMPLES = 5
    INPUT = 6
    COMPUTE = 7
    SEND = 8
    WAIT = 9
    REDUCE = 10
    UPDATE = 11
    SETTLE = 12
    HIDDEN = 13
    """Communication beside the computing, which took no time of its own."""
    OTHER = 14
    """The script's own time between steps of this row."""
    LOSS = 15
    """Losses times samples; divided by ``WEIGHT``, it is the mean loss."""
    WEIGHT = 16
    """Samples of steps whose loss is known."""
    STALENESS = 17
    LOW = 18
    """The least loss of a step; NaN if none is known."""
    HIGH = 19
    STALEST = 20
    ENDED = 21
    NUMBER = 22
    """The worker's steps since the run began, those of this row included."""
    UNTIL = 23
    """Where in the file of events the line of its last step ends."""


WIDTH = len(RowColumn)
ROW_BYTES = 8 * WIDTH
PARTS = slice(RowColumn.INPUT, RowColumn.SETTLE + 1)
"""The durations of a step, in their order."""
_FIRSTS = slice(RowColumn.BEGAN, RowColumn.OPENS + 1)
_SUMS = slice(RowColumn.STEPS, RowColumn.STALENESS + 1)
_MOST = slice(RowColumn.HIGH, RowColumn.STALEST + 1)
_LASTS = slice(RowColumn.ENDED, RowColumn.UNTIL + 1)


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
