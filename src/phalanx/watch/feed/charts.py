"""The charts of a stretch of a run: throughput, where the time goes, loss and staleness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.observe.rollups.rows import WIDTH, RowColumn, Rows, gaps, merge
from phalanx.watch.feed.chart_types import Axis, Chart, Series

Numbers = NDArray[np.float64]
SPLIT = {
    "input": [RowColumn.INPUT],
    "compute": [RowColumn.COMPUTE],
    "communicate": [RowColumn.SEND, RowColumn.REDUCE],
    "wait": [RowColumn.WAIT, RowColumn.SETTLE],
    "update": [RowColumn.UPDATE],
    "other": [RowColumn.OTHER],
}
"""Where the time goes, as summaries and reports have it: the sums that each part consists of."""
_HIDDEN = "hidden beside"
_LEAST = 1e-9
_SUMS = slice(RowColumn.SAMPLES, RowColumn.OTHER + 1)
"""The sums that are spread over the time of their row."""
_SECONDS = [*range(RowColumn.INPUT, RowColumn.SETTLE + 1), RowColumn.OTHER]
"""Their sum is the time in which a worker took part."""


@dataclass(frozen=True)
class Lane:
    """The rows of one worker."""

    rank: int
    machine: str
    rows: Rows


@dataclass(frozen=True)
class Stretch:
    """A part of the run, cut into bins: what is drawn, and where on the axis."""

    lanes: Sequence[Lane]
    edges: Numbers
    axis: Axis
    x_values: Numbers
    """The place of each bin; a bin whose place is NaN is left out."""

    def listed(self, values: Numbers) -> list[float | None]:
        """Return figures of the bins for JSON: those that are not finite become null."""
        kept = values[~np.isnan(self.x_values)]
        known = np.isfinite(kept)
        found: list[float | None] = kept.tolist()
        if np.all(known):
            return found
        return [value if good else None for value, good in zip(found, known.tolist(), strict=True)]


def make_charts(stretch: Stretch) -> list[Chart]:
    spread = [sums_between(lane.rows, stretch.edges) for lane in stretch.lanes]
    binned = [_binned(lane.rows, stretch.edges) for lane in stretch.lanes]
    charts = [_throughput(stretch, spread), _time_split(stretch, spread), _loss(stretch, binned)]
    if any(np.any(rows[:, RowColumn.STALEST] > 0) for rows in binned):
        charts.append(_staleness(stretch, binned))
    return charts


def sums_between(rows: Rows, edges: Numbers) -> Numbers:
    """Return a row for each bin, with the sums from ``SAMPLES`` to ``OTHER``.

    What a row has is spread evenly over its time; between two rows only ``OTHER`` grows.
    """
    found = np.zeros((len(edges) - 1, WIDTH))
    began, ended = rows[:, RowColumn.BEGAN], rows[:, RowColumn.ENDED]
    at = np.maximum(np.searchsorted(began, edges, side="right") - 1, 0)  # in progress at each edge
    since, room = edges - began[at], ended[at] - began[at]
    part = np.clip(since / np.where(room > 0, room, _LEAST), 0.0, 1.0)
    sums: Numbers = np.add.reduceat(rows[:, _SUMS], at)[:-1]
    sums[at[:-1] == at[1:]] = 0.0
    sums += np.diff(part[:, None] * rows[at, _SUMS], axis=0)
    apart = np.append(gaps(rows), 0.0)
    waited = np.cumsum(apart) - apart
    after = np.clip(edges - ended[at], 0.0, apart[at])
    found[:, _SUMS] = sums
    found[:, RowColumn.OTHER] += np.diff(waited[at] + after)
    return found


def _ratio(above: Numbers, below: Numbers) -> Numbers:
    ratio: Numbers = np.full(len(above), np.nan)
    return np.divide(above, below, out=ratio, where=below > _LEAST)


def _chart(
    stretch: Stretch, name: str, title: str, unit: str, series: list[Series], *, log: bool = False
) -> Chart:
    x_values = stretch.x_values[~np.isnan(stretch.x_values)].tolist()
    return Chart(name, title, unit, stretch.axis, x_values, series, log)


def _throughput(stretch: Stretch, spread: Sequence[Numbers]) -> Chart:
    series = []
    total = longest = np.zeros(len(stretch.edges) - 1)
    for lane, sums in zip(stretch.lanes, spread, strict=True):
        samples, seconds = sums[:, RowColumn.SAMPLES], sums[:, _SECONDS].sum(axis=1)
        total, longest = total + samples, np.maximum(longest, seconds)
        values = stretch.listed(_ratio(samples, seconds))
        series.append(Series(f"worker {lane.rank}", values, lane.rank))
    if len(series) > 1:
        series.insert(0, Series("total", stretch.listed(_ratio(total, longest))))
    return _chart(stretch, "throughput", "Throughput", "samples/s", series)


def _time_split(stretch: Stretch, spread: Sequence[Numbers]) -> Chart:
    together = sum(spread, np.zeros((len(stretch.edges) - 1, WIDTH)))
    whole = together[:, _SECONDS].sum(axis=1)
    some = {_HIDDEN: [RowColumn.HIDDEN]} if np.any(together[:, RowColumn.HIDDEN] > 0) else {}
    series = []
    for name, parts in {**SPLIT, **some}.items():
        share = _ratio(together[:, parts].sum(axis=1), whole)
        series.append(Series(name, stretch.listed(share)))
    return _chart(stretch, "time_split", "Where the time goes", "share", series)


def _binned(rows: Rows, edges: Numbers) -> Rows:
    """Return a row for each bin; those of bins in which no step began are NaN."""
    low, high = np.searchsorted(rows[:, RowColumn.BEGAN], (edges[0], edges[-1]))
    place = np.searchsorted(edges, rows[low:high, RowColumn.BEGAN], side="right") - 1
    found = np.full((len(edges) - 1, WIDTH), np.nan)
    found[np.unique(place)] = merge(rows[low:high], place.astype(float))
    return found


def _loss(stretch: Stretch, binned: Sequence[Rows]) -> Chart:
    together = np.stack([np.full((len(stretch.edges) - 1, WIDTH), np.nan), *binned])
    sums = np.nansum(together[:, :, RowColumn.LOSS : RowColumn.WEIGHT + 1], axis=0)
    mean = stretch.listed(_ratio(sums[:, 0], sums[:, 1]))
    low = stretch.listed(np.fmin.reduce(together[:, :, RowColumn.LOW]))
    high = stretch.listed(np.fmax.reduce(together[:, :, RowColumn.HIGH]))
    series = Series("training loss", mean, low=low, high=high)
    return _chart(stretch, "loss", "Training loss", "", [series], log=True)


def _staleness(stretch: Stretch, binned: Sequence[Rows]) -> Chart:
    """Return the mean of each worker, with the greatest."""
    series = []
    for lane, rows in zip(stretch.lanes, binned, strict=True):
        mean = stretch.listed(_ratio(rows[:, RowColumn.STALENESS], rows[:, RowColumn.STEPS]))
        most = stretch.listed(rows[:, RowColumn.STALEST])
        series.append(Series(f"worker {lane.rank}", mean, lane.rank, high=most))
    title = "Staleness: updates of others that a gradient missed"
    return _chart(stretch, "staleness", title, "updates", series)
