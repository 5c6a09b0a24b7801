"""What a run's steps were like, from its roll-ups: charts and timelines of any part of it.

Every chart is cut by time. Its points are then put at the step, or the epoch, that the run had
reached at that time, so all its workers share one axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.rollups.rank_rollup import WIDTHS
from phalanx.observe.rollups.rows import RowColumn, Rows
from phalanx.observe.rollups.run_rollups import RunRollups
from phalanx.observe.rollups.step_lines import StepsTold
from phalanx.watch.feed.chart_types import Axis, Chart, RankSpans, Timeline
from phalanx.watch.feed.charts import Lane, Numbers, Stretch, make_charts
from phalanx.watch.feed.timeline_spans import KINDS, spans_of_bins, spans_of_steps

AXES = {
    "time": Axis("time", "s"),
    "step": Axis("step", "steps"),
    "epoch": Axis("epoch", "epochs"),
}
MOST_POINTS = 5_000
NEAR_BYTES = 1 << 20
"""The most bytes of events, of all workers, that are read again to show single steps."""
NEAR_STEPS = 2_000
"""The most steps that a timeline shows one by one."""
MOST_KEPT = 16
"""Charts that are kept until something is added."""
MOST_KNOTS = 600
"""The most rows of a worker that show the steps and epochs of a whole run, if minutes are enough.
"""
_FINE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds of a bin in which single steps are seen."""
_NICE = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600)
"""Seconds of a bin; each is a whole number of rows."""


class History:
    """The steps of one run, read bit by bit."""

    def __init__(self, paths: RunPaths) -> None:
        self._rollups = RunRollups(paths)
        self._charts: dict[tuple[object, ...], list[Chart]] = {}
        self._wholes: dict[str, _Knots] = {}
        """What was asked for, until something is added."""

    def read_more(self, seconds: float = 0.2) -> bool:
        """Read what is new, for at most about ``seconds``; return whether there was anything."""
        added = self._rollups.read(seconds)
        if added or len(self._charts) > MOST_KEPT:
            self._charts.clear()
            self._wholes.clear()
        return added

    @property
    def share_read(self) -> float | None:
        """The share of the events that was read; ``None`` if all were."""
        return self._rollups.share_read

    def close(self) -> None:
        """Save the roll-ups; nothing can be read afterwards."""
        self._rollups.close()

    # -- the run's time ----------------------------------------------------------------------

    @property
    def began(self) -> float | None:
        """The moment that is time 0: when training began, on the clock of the events."""
        told = [rank.told for rank in self._rollups.ranks.values()]
        planned = [one.planned for one in told if one.planned is not None]
        if planned:
            return min(planned)
        bounds = self._bounds()
        return bounds[0] if bounds else None

    def place(self, time: float, by: str) -> float:
        """Return the step or the epoch that the run had come to after ``time`` seconds."""
        began = self.began
        if by == "time":
            return time
        if began is None:
            return 0.0
        return float(self._whole(by).places(np.array([time + began]))[0])

    def _bounds(self) -> tuple[float, float] | None:
        """When the first step began, and the last ended."""
        told = [rank.told for rank in self._rollups.ranks.values()]
        some = [(one.first, one.last) for one in told if one.first is not None]
        return (min(one[0] for one in some), max(one[1] for one in some)) if some else None

    def _whole(self, by: str) -> _Knots:
        """Return the steps or epochs of the whole run, as minutes or more than 600 rows show."""
        if by not in self._wholes:
            self._wholes[by] = self._knots(by)
        return self._wholes[by]

    def _knots(self, by: str, parts: Sequence[Rows] | None = None) -> _Knots:
        ranks, bounds = list(self._rollups.ranks.values()), self._bounds() or (0.0, 0.0)
        fits = [one for one in WIDTHS if bounds[1] - bounds[0] <= MOST_KNOTS * one]
        whole = [rank.rows((*fits, WIDTHS[-1])[0], *bounds) for rank in ranks]
        steps = _step_knots(whole if parts is None else parts)
        return steps if by == "step" else _epoch_knots(steps, whole, [rank.told for rank in ranks])

    # -- charts ------------------------------------------------------------------------------

    def charts(
        self, by: str, points: int, first: float | None = None, last: float | None = None
    ) -> list[Chart]:
        """Return the charts between two places of the axis, with at most ``points`` points."""
        key = (by, points, first, last)
        if key not in self._charts:
            self._charts[key] = self._make_charts(by, points, first, last)
        return self._charts[key]

    def _make_charts(
        self, by: str, points: int, first: float | None, last: float | None
    ) -> list[Chart]:
        wanted = self._range(by, first, last)
        if wanted is None:
            return make_charts(Stretch([], np.zeros(1), AXES[by], np.zeros(0)))
        begin, end = wanted
        width = self._bin_seconds(begin, end, max(2, min(points, MOST_POINTS)))
        lanes = self._lanes(begin, end, width)
        low = math.floor(begin / width)
        count = max(math.ceil(end / width) - low, 1)
        edges: Numbers = np.arange(low, low + count + 1, dtype=float) * width
        middles = (np.maximum(edges[:-1], begin) + np.minimum(edges[1:], end)) / 2
        places = middles - (self.began or 0.0)
        if by != "time":
            places = self._knots(by, [lane.rows for lane in lanes]).places(middles)
            # Where nothing was trained, time went on, but not this axis.
            places[np.diff(places, prepend=-1.0) <= 0] = np.nan
        return make_charts(Stretch(lanes, edges, AXES[by], np.round(places, 6)))

    def _range(
        self, by: str, first: float | None, last: float | None
    ) -> tuple[float, float] | None:
        """Return the range on the clock of the events, within that of the run's steps."""
        bounds = self._bounds()
        if bounds is None:
            return None
        begin, end = (
            self._moment(by, place) if place is not None and math.isfinite(place) else bound
            for place, bound in zip((first, last), bounds, strict=True)
        )
        begin = min(max(begin, bounds[0]), bounds[1])
        return begin, min(max(end, begin), bounds[1])

    def _moment(self, by: str, place: float) -> float:
        """Return when the run came to a place of the axis."""
        if by == "time":
            return place + (self.began or 0.0)
        rough = self._whole(by).time(place)
        ranks = self._rollups.ranks.values()
        around = [rank.rows(WIDTHS[0], rough - WIDTHS[-1], rough + WIDTHS[-1]) for rank in ranks]
        return self._knots(by, around).time(place)

    def _bin_seconds(self, begin: float, end: float, points: int) -> float:
        """Return how long a bin is: never shorter than the usual step of the fastest worker."""
        told = [rank.told for rank in self._rollups.ranks.values()]
        usual = [(one.last - (one.first or 0.0)) / one.number for one in told if one.number]
        least = max((end - begin) / max(1, points - 2), min(usual, default=0.0))
        fits = (*_FINE, *_NICE) if least <= _FINE[-1] and self._is_near(begin, end) else _NICE
        return next((nice for nice in fits if nice >= least), math.ceil(least / 3600) * 3600)

    def _is_near(self, begin: float, end: float) -> bool:
        """Whether the single steps of a range are quickly read."""
        ranks = self._rollups.ranks.values()
        return sum(rank.step_bytes(begin, end) for rank in ranks) <= NEAR_BYTES

    def _lanes(self, begin: float, end: float, width: float) -> list[Lane]:
        """Return the rows of each worker: the coarsest that are no longer than ``width``."""
        lanes = []
        level = max((one for one in WIDTHS if one <= width), default=None)
        for rank, rollup in sorted(self._rollups.ranks.items()):
            rows = rollup.rows(level, begin, end) if level else rollup.steps(begin, end)
            if len(rows):
                lanes.append(Lane(rank, rollup.told.machine, rows))
        return lanes

    # -- the timeline ------------------------------------------------------------------------

    def timeline(
        self, first: float | None = None, last: float | None = None, points: int = 300
    ) -> Timeline:
        """Return what each worker did between two times: its steps if they are few."""
        wanted = self._range("time", first, last)
        if wanted is None:
            return Timeline(0.0, 0.0, [], list(KINDS))
        begin, end = wanted
        began = self.began or 0.0
        bins = max(1, min(points, MOST_POINTS))
        lanes = self._lanes(begin, end, max((end - begin) / bins, WIDTHS[0]))
        few = sum(_steps_within(lane, begin, end) for lane in lanes) <= NEAR_STEPS
        exact = few and self._is_near(begin, end)
        if exact:
            lanes = self._lanes(begin, end, 0.0)
        edges = np.linspace(begin, end, bins + 1)
        found = []
        for lane in lanes:
            if exact:
                spans = spans_of_steps(lane.rows, begin, end, began)
            else:
                spans = spans_of_bins(lane.rows, edges, began)
            found.append(RankSpans(lane.rank, lane.machine, spans))
        return Timeline(begin - began, end - began, found, list(KINDS), exact)


def _steps_within(lane: Lane, begin: float, end: float) -> float:
    inside = (lane.rows[:, RowColumn.ENDED] > begin) & (lane.rows[:, RowColumn.BEGAN] < end)
    return float(lane.rows[inside][:, [RowColumn.STEPS, RowColumn.ROUNDS]].sum())


class _Knots:
    """A line that never falls, from times to places."""

    def __init__(self, times: Numbers, places: Numbers) -> None:
        self.times = times
        self.reached = np.maximum.accumulate(places)

    def places(self, times: Numbers) -> Numbers:
        return np.interp(times, self.times, self.reached)

    def time(self, place: float) -> float:
        """Return when the run came to ``place``."""
        rises = np.append(True, np.diff(self.reached) > 0)
        return float(np.interp(place, self.reached[rises], self.times[rises]))


def _step_knots(parts: Sequence[Rows]) -> _Knots:
    """Return how many steps the worker had done that had done most."""
    lines = [_steps_of(rows) for rows in parts if len(rows)] or [(np.zeros(1), np.zeros(1))]
    times = np.unique(np.concatenate([line[0] for line in lines]))
    return _Knots(times, np.max([np.interp(times, *line) for line in lines], axis=0))


def _steps_of(rows: Rows) -> tuple[Numbers, Numbers]:
    times = np.column_stack([rows[:, RowColumn.BEGAN], rows[:, RowColumn.ENDED]]).ravel()
    after = rows[:, RowColumn.NUMBER]
    places = np.column_stack([after - rows[:, RowColumn.STEPS], after]).ravel()
    return np.maximum.accumulate(times), places


def _epoch_knots(steps: _Knots, parts: Sequence[Rows], told: Sequence[StepsTold]) -> _Knots:
    """Turn steps into epochs: whole when an epoch ends, in between by its steps.

    ``parts``: the rows of the whole run.
    """
    turns = sorted(turn for one in told for turn in one.turns)
    if not turns:
        return steps
    epochs, firsts = np.unique([epoch for epoch, _ in turns], return_index=True)
    whole = _step_knots(parts)
    begins = whole.places(np.array(turns)[firsts, 1])
    done = float(whole.reached[-1])
    share = 1.0
    if all(one.epoch_done < epochs[-1] for one in told):
        # What a whole epoch takes is known from the samples that all steps had.
        trained = sum(float(rows[:, RowColumn.SAMPLES].sum()) for rows in parts)
        whole_epoch = done * max(one.samples for one in told) / max(trained, 1.0)
        share = min(1.0, (done - float(begins[-1])) / whole_epoch) if whole_epoch else 1.0
    begins, epochs = np.append(begins, done), np.append(epochs, epochs[-1] + share)
    return _Knots(steps.times, np.interp(steps.reached, begins, epochs))
