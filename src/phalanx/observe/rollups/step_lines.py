"""The lines of a worker's events, as rows of steps: only what roll-ups need is decoded.

Columns are gathered from many lines before they become arrays: an array a line and column would
take longer than the decoding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.observe.rollups.rows import PARTS, WIDTH, RowColumn, Rows, no_rows

LONGEST, LATEST = 1e6, 1e12
"""The most seconds of a part of a step, and of the clock: a machine may report anything."""
MOST = 1e12
"""The most samples of a step, the greatest staleness, and the most epochs."""
_LARGEST_LOSS = 1e100
"""A loss beyond counts as not a number: sums stay finite."""
_DURATIONS = ("input", "compute", "send", "wait", "reduce", "update", "settle", "hidden")
_COLUMNS = ("began", "samples", *_DURATIONS, "staleness", "loss")


class _Steps(msgspec.Struct, tag="steps", gc=False):
    epoch: int
    began: list[float]
    samples: list[int]
    input: list[float]
    compute: list[float]
    send: list[float]
    wait: list[float]
    reduce: list[float]
    update: list[float]
    settle: list[float]
    staleness: list[int]
    loss: list[float | None]
    hidden: list[float] = []


class _Joined(msgspec.Struct, tag="joined", gc=False):
    time: float
    machine: str


class _Planned(msgspec.Struct, tag="planned", gc=False):
    time: float
    samples: int


class _EpochDone(msgspec.Struct, tag="epoch", gc=False):
    epoch: int


_decoder = msgspec.json.Decoder(_Steps | _Joined | _Planned | _EpochDone)


class StepsTold(msgspec.Struct):
    """What a worker's events have told so far, and how they go on."""

    machine: str = ""
    joined: float | None = None
    """The time of its first join."""
    planned: float | None = None
    """When its training began."""
    samples: int = 0
    """Samples of an epoch, over all workers."""
    epoch_done: int = -1
    first: float | None = None
    """When its first step began, which was one of ``first_epoch``."""
    first_epoch: float = 0.0
    last: float = -LATEST
    """When its last step ended."""
    number: float = 0.0
    began: float = -LATEST
    epoch: int = -1
    row_epoch: float = -1.0
    """The epoch of the last row that was made, which began at ``turned``."""
    turned: float = 0.0
    epochs_before: int = 0
    """Epochs of earlier trainings of the same script."""
    joins: bool = True
    """The worker has joined, and no step has followed."""


class _Gathered:
    """The columns of several lines, and what is the same in all rows of a line."""

    def __init__(self) -> None:
        self.columns: dict[str, list[float]] = {name: [] for name in _COLUMNS}
        self.lines: list[tuple[int, float, float, int, int]] = []
        """Of each: its rows, whether it is the first of a join, its epoch, where it is."""

    def add(self, line: _Steps, epoch: int, place: int, until: int, *, opens: bool) -> None:
        line.hidden = line.hidden or [0.0] * len(line.began)
        found: list[list[float]] = [getattr(line, name) for name in _COLUMNS]
        count = min(map(len, found))
        for mine, more in zip(self.columns.values(), found, strict=True):
            mine += more if len(more) == count else more[:count]
        self.lines.append((count, opens, epoch, place, until))


def rows_of(lines: Iterable[bytes], place: int, told: StepsTold) -> Rows:
    """Return the steps of ``lines``, the first of which begins at ``place``; go on from ``told``.

    The lines have no newlines. Whatever is no event that is needed is left out.
    """
    found = _Gathered()
    for text in lines:
        until = place + len(text) + 1
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            line = _decoder.decode(text)
            if not isinstance(line, _Steps):
                _take_other(line, told)
            elif line.began:
                epoch = max(0, min(line.epoch, int(MOST)))
                if told.joins and epoch + told.epochs_before < told.epoch:
                    told.epochs_before = told.epoch + 1 - epoch  # the script's next training
                told.epoch = epoch + told.epochs_before
                found.add(line, told.epoch, place, until, opens=told.joins)
                told.joins = False
        place = until
    return _as_rows(found, told) if found.columns["began"] else no_rows()


def _take_other(line: _Joined | _Planned | _EpochDone, told: StepsTold) -> None:
    if isinstance(line, _Joined):
        told.joins, told.machine = True, line.machine
        told.joined = line.time if told.joined is None else told.joined
    elif isinstance(line, _Planned):
        told.samples = max(0, min(line.samples, int(MOST)))
        told.planned = line.time if told.planned is None else told.planned
    else:
        told.epoch_done = min(line.epoch, int(MOST)) + told.epochs_before


def _as_rows(found: _Gathered, told: StepsTold) -> Rows:
    lines = np.array(found.lines, dtype=float)
    counts = lines[:, 0].astype(int)
    of_row = np.repeat(lines, counts, axis=0)
    rows = np.zeros((len(of_row), WIDTH))
    for number, name in enumerate(_DURATIONS):
        rows[:, RowColumn.INPUT + number] = _numbers(found.columns[name], LONGEST)
    samples, parts = _numbers(found.columns["samples"], MOST), rows[:, PARTS]
    rounds = (samples == 0) & (parts[:, 0] == 0) & (parts[:, 1] == 0)
    rows[:, RowColumn.ROUNDS], rows[:, RowColumn.STEPS] = rounds, ~rounds
    rows[:, RowColumn.SAMPLES] = samples
    began = np.clip(np.fromiter(found.columns["began"], float), -LATEST, LATEST)
    began = np.maximum.accumulate(np.maximum(began, told.began))
    rows[:, RowColumn.BEGAN] = began
    rows[:, RowColumn.ENDED] = began + parts.sum(axis=1)
    rows[:, RowColumn.INDEX] = np.floor(began)
    firsts = np.cumsum(counts) - counts
    rows[firsts[counts > 0], RowColumn.OPENS] = lines[counts > 0, 1]
    rows[:, RowColumn.PLACE], rows[:, RowColumn.UNTIL] = of_row[:, 3], of_row[:, 4]
    rows[:, RowColumn.NUMBER] = told.number + np.cumsum(~rounds)
    _add_losses(rows, found.columns)
    _add_epochs(rows, of_row[:, 2], told)
    if told.first is None:
        told.first, told.first_epoch = float(began[0]), float(of_row[0, 2])
    told.last = max(told.last, float(rows[-1, RowColumn.ENDED]))
    told.number, told.began = float(rows[-1, RowColumn.NUMBER]), float(began[-1])
    return rows


def _add_losses(rows: Rows, columns: dict[str, list[float]]) -> None:
    loss = np.array(columns["loss"], dtype=float)  # null becomes NaN
    known = (np.abs(loss) < _LARGEST_LOSS) & (rows[:, RowColumn.SAMPLES] > 0)
    rows[:, RowColumn.WEIGHT] = np.where(known, rows[:, RowColumn.SAMPLES], 0.0)
    rows[:, RowColumn.LOSS] = np.where(known, loss, 0.0) * rows[:, RowColumn.WEIGHT]
    rows[:, RowColumn.LOW] = rows[:, RowColumn.HIGH] = np.where(known, loss, np.nan)
    staleness = np.where(rows[:, RowColumn.STEPS] > 0, _numbers(columns["staleness"], MOST), 0.0)
    rows[:, RowColumn.STALENESS] = rows[:, RowColumn.STALEST] = staleness


def _add_epochs(rows: Rows, epochs: NDArray[np.float64], told: StepsTold) -> None:
    """Add each row's epoch and when that began, which may have been in an earlier line."""
    turns = np.diff(epochs, prepend=told.row_epoch) != 0
    at = np.maximum.accumulate(np.where(turns, np.arange(len(rows)), -1))
    rows[:, RowColumn.EPOCH] = epochs
    rows[:, RowColumn.TURNED] = np.where(at >= 0, rows[at, RowColumn.BEGAN], told.turned)
    told.turned, told.row_epoch = float(rows[-1, RowColumn.TURNED]), float(epochs[-1])


def _numbers(values: Sequence[float], most: float) -> NDArray[np.float64]:
    try:
        numbers = np.fromiter(values, float, len(values))
    except OverflowError:  # a whole number of hundreds of digits
        numbers = np.fromiter((min(value, most) for value in values), float, len(values))
    clipped: NDArray[np.float64] = np.clip(numbers, 0.0, most)
    return clipped
