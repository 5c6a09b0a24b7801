"""The lines of a worker's events, as rows of steps.

Columns are gathered from many lines before they become arrays: an array a line and column would
take longer than the decoding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.observe.events.event_types import STEP_COLUMNS, EpochDone, Joined, Planned, Steps
from phalanx.observe.rollups.rows import PARTS, WIDTH, RowColumn, Rows, no_rows

LONGEST, LATEST = 1e6, 1e12
"""The most seconds of a part of a step, and of the clock: a machine may report anything."""
MOST = 10**12
"""The most samples of a step, the greatest staleness, and the most epochs."""
_LARGEST_LOSS = 1e100
"""A loss beyond counts as not a number: sums stay finite."""
_TURNS_APART = 1.0
"""Seconds between two beginnings of epochs that are told apart."""
_DURATIONS = ("input", "compute", "send", "wait", "reduce", "update", "settle", "hidden")
_decoder = msgspec.json.Decoder(Steps | Joined | Planned | EpochDone)


class StepsTold(msgspec.Struct):
    """What a worker's events have told so far, and how they go on."""

    machine: str = ""
    planned: float | None = None
    """When its training began."""
    samples: int = 0
    """Samples of an epoch, over all workers."""
    epoch_done: int = -1
    first: float | None = None
    """When its first step began."""
    last: float = -LATEST
    """When its last step ended."""
    number: float = 0.0
    began: float = -LATEST
    epoch: int = -1
    turns: list[tuple[int, float]] = []
    """Epochs, and when this worker began each."""
    epochs_before: int = 0
    """Epochs of earlier trainings of the same script."""
    joins: bool = True
    """The worker has joined, and no step has followed."""


def rows_of(lines: Iterable[bytes], place: int, told: StepsTold) -> Rows:
    """Return the steps of ``lines``, the first of which begins at ``place``; go on from ``told``.

    The lines have no newlines. Whatever is no event that is needed is left out.
    """
    found: list[Steps] = []
    about: list[tuple[int, bool, int, int]] = []
    for text in lines:
        until = place + len(text) + 1
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            event = _decoder.decode(text)
            if not isinstance(event, Steps):
                _take_other(event, told)
            elif _is_whole(event):
                found.append(event)
                about.append((len(event.began), told.joins, place, until))
                _take_epoch(event, told)
        place = until
    return _as_rows(found, np.array(about), told) if found else no_rows()


def _is_whole(line: Steps) -> bool:
    sizes = {len(getattr(line, name)) for name in STEP_COLUMNS if name != "hidden"}
    return sizes == {len(line.hidden or line.began)} and 0 not in sizes


def _take_other(event: Joined | Planned | EpochDone, told: StepsTold) -> None:
    if isinstance(event, Joined):
        told.joins, told.machine = True, event.machine
    elif isinstance(event, Planned):
        told.samples = max(0, min(event.samples, MOST))
        told.planned = event.time if told.planned is None else told.planned
    else:
        told.epoch_done = min(event.epoch, MOST) + told.epochs_before


def _take_epoch(line: Steps, told: StepsTold) -> None:
    epoch = max(0, min(line.epoch, MOST))
    if told.joins and epoch + told.epochs_before < told.epoch:
        told.epochs_before = told.epoch + 1 - epoch  # the script's next training
    epoch += told.epochs_before
    began = float(np.clip(line.began[0], -LATEST, LATEST))
    before = told.turns[-1][1] if told.turns else -np.inf
    if epoch != told.epoch and began >= before + _TURNS_APART:
        told.turns.append((epoch, began))
    told.epoch, told.joins = epoch, False


def _as_rows(found: list[Steps], about: NDArray[np.int64], told: StepsTold) -> Rows:
    counts = about[:, 0]
    rows = np.zeros((counts.sum(), WIDTH))
    for number, name in enumerate(_DURATIONS):
        rows[:, RowColumn.INPUT + number] = _numbers(found, name, LONGEST)
    samples, parts = _numbers(found, "samples", MOST), rows[:, PARTS]
    rounds = (samples == 0) & (parts[:, 0] == 0) & (parts[:, 1] == 0)
    rows[:, RowColumn.ROUNDS], rows[:, RowColumn.STEPS] = rounds, ~rounds
    rows[:, RowColumn.SAMPLES] = samples
    began = np.maximum.accumulate(_numbers(found, "began", LATEST, least=told.began))
    rows[:, RowColumn.BEGAN] = began
    rows[:, RowColumn.ENDED] = began + parts.sum(axis=1)
    rows[np.cumsum(counts) - counts, RowColumn.OPENS] = about[:, 1]
    rows[:, RowColumn.PLACE] = np.repeat(about[:, 2], counts)
    rows[:, RowColumn.UNTIL] = np.repeat(about[:, 3], counts)
    rows[:, RowColumn.NUMBER] = told.number + np.cumsum(~rounds)
    losses = chain.from_iterable(line.loss for line in found)
    _add_losses(rows, np.array(list(losses), dtype=float))  # null becomes NaN
    staleness = np.where(rounds, 0.0, _numbers(found, "staleness", MOST))
    rows[:, RowColumn.STALENESS] = rows[:, RowColumn.STALEST] = staleness
    told.first = float(began[0]) if told.first is None else told.first
    told.last = max(told.last, float(rows[-1, RowColumn.ENDED]))
    told.number, told.began = float(rows[-1, RowColumn.NUMBER]), float(began[-1])
    return rows


def _add_losses(rows: Rows, loss: NDArray[np.float64]) -> None:
    known = (np.abs(loss) < _LARGEST_LOSS) & (rows[:, RowColumn.SAMPLES] > 0)
    rows[:, RowColumn.WEIGHT] = np.where(known, rows[:, RowColumn.SAMPLES], 0.0)
    rows[:, RowColumn.LOSS] = np.where(known, loss, 0.0) * rows[:, RowColumn.WEIGHT]
    rows[:, RowColumn.LOW] = rows[:, RowColumn.HIGH] = np.where(known, loss, np.nan)


def _numbers(
    found: Sequence[Steps], name: str, most: float, least: float = 0.0
) -> NDArray[np.float64]:
    """Return a column of all lines, within bounds."""
    values = chain.from_iterable(getattr(line, name) or [0.0] * len(line.began) for line in found)
    listed: list[float] = list(values)
    try:
        numbers = np.fromiter(listed, float, len(listed))
    except OverflowError:  # a whole number of hundreds of digits
        numbers = np.fromiter((min(value, most) for value in listed), float, len(listed))
    clipped: NDArray[np.float64] = np.clip(numbers, least, most)
    return clipped
