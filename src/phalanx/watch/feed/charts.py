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
        known = kept.astype(object)
        known[~np.isfinite(kept)] = None
        found: list[float | None] = known.tolist()
        return found

    def by_worker(self, values: Numbers, high: Numbers | None = None) -> list[Series]:
        series = []
        for at, lane in enumerate(self.lanes):
            most = None if high is None else self.listed(high[at])
            name = f"worker {lane.rank}"
            series.append(Series(name, self.listed(values[at]), lane.rank, high=most))
        return series

    def chart(
        self, name: str, title: str, unit: str, series: list[Series], *, log: bool = False
    ) -> Chart:
        x_values = self.x_values[~np.isnan(self.x_values)].tolist()
        return Chart(name, title, unit, self.axis, x_values, series, log)


def make_charts(stretch: Stretch) -> list[Chart]:
    found = [_bins_of(lane.rows, stretch.edges) for lane in stretch.lanes]
    bins = np.array(found).reshape(len(found), len(stretch.edges) - 1, WIDTH)
    charts = [_throughput(stretch, bins), _time_split(stretch, bins), _loss(stretch, bins)]
    if np.any(bins[:, :, RowColumn.STALEST] > 0):
        charts.append(_staleness(stretch, bins))
    return charts


def _bins_of(rows: Rows, edges: Numbers) -> Rows:
    """Return a row for each bin; in those in which no step began only the spread sums are known."""
    low, high = np.searchsorted(rows[:, RowColumn.BEGAN], (edges[0], edges[-1]))
    place = np.searchsorted(edges, rows[low:high, RowColumn.BEGAN], side="right") - 1
    found = np.full((len(edges) - 1, WIDTH), np.nan)
    found[np.unique(place)] = merge(rows[low:high], place.astype(float))
    found[:, _SUMS] = sums_between(rows, edges)[:, _SUMS]
    return found


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
    ratio: Numbers = np.full(above.shape, np.nan)
    return np.divide(above, below, out=ratio, where=below > _LEAST)


# Each of these takes the rows of all bins, by worker.


def _throughput(stretch: Stretch, bins: Numbers) -> Chart:
    samples, seconds = bins[:, :, RowColumn.SAMPLES], bins[:, :, _SECONDS].sum(axis=2)
    series = stretch.by_worker(_ratio(samples, seconds))
    if len(series) > 1:
        total = _ratio(samples.sum(axis=0), seconds.max(axis=0))
        series.insert(0, Series("total", stretch.listed(total)))
    return stretch.chart("throughput", "Throughput", "samples/s", series)


def _time_split(stretch: Stretch, bins: Numbers) -> Chart:
    together = bins.sum(axis=0)
    whole = together[:, _SECONDS].sum(axis=1)
    some = {_HIDDEN: [RowColumn.HIDDEN]} if np.any(together[:, RowColumn.HIDDEN] > 0) else {}
    series = []
    for name, parts in {**SPLIT, **some}.items():
        share = _ratio(together[:, parts].sum(axis=1), whole)
        series.append(Series(name, stretch.listed(share)))
    return stretch.chart("time_split", "Where the time goes", "share", series)


def _loss(stretch: Stretch, bins: Numbers) -> Chart:
    sums = np.nansum(bins[:, :, [RowColumn.LOSS, RowColumn.WEIGHT]], axis=0)
    mean = stretch.listed(_ratio(sums[:, 0], sums[:, 1]))
    low = stretch.listed(np.fmin.reduce(bins[:, :, RowColumn.LOW], initial=np.nan))
    high = stretch.listed(np.fmax.reduce(bins[:, :, RowColumn.HIGH], initial=np.nan))
    series = Series("training loss", mean, low=low, high=high)
    return stretch.chart("loss", "Training loss", "", [series], log=True)


def _staleness(stretch: Stretch, bins: Numbers) -> Chart:
    """Return the mean of each worker, with the greatest."""
    mean = _ratio(bins[:, :, RowColumn.STALENESS], bins[:, :, RowColumn.STEPS])
    series = stretch.by_worker(mean, bins[:, :, RowColumn.STALEST])
    title = "Staleness: updates of others that a gradient missed"
    return stretch.chart("staleness", title, "updates", series)
