"""Decides at which batch sizes a script is tried, and for how long; fits curves. Pure.

Sizes take turns in short blocks, so that a machine that becomes slower does so for all of them. The
first steps of a block are warm-up. The largest size comes first: in memory that tensors of other
sizes have left gaps in, the same step may take a tenth longer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from phalanx.plan.job import MachineCosts, WorkCurve

PARTS = (8, 4, 2, 1)
"""Parts of the script's batch that are measured: an eighth, …"""
STEPS_SHARE = 0.7
"""The part of the seconds that goes to steps; the rest is for an evaluation."""
_ROUNDS = 4
_LEAST_STEPS = 2
_FAST = 0.05
"""Shorter steps, in seconds, leave time for a few more of them as warm-up."""


class Trial:
    def __init__(self, seconds: float) -> None:
        self._seconds, self._sizes = seconds, list[int]()
        self._turn = self._skipped = self._batch = self.updates = 0
        self._batches = 1
        self._block: Block = []
        self.blocks: list[Block] = []
        self._warm_up: StepSeconds | None = None
        self._started: float | None = None
        self.over = False
        self.drop()

    def drop(self) -> None:
        """Drop the present step, which is not whole, because the script has left its loop."""
        self._began: float | None = None
        self._parts: list[int] = []
        self._input = 0.0
        self._update: float | None = None

    def plan(self, batch: int, samples: int, least: int) -> None:
        """Plan the sizes to measure in a pass by ``batch``; each has at least ``least`` samples."""
        if not self._sizes:
            self._batch = most = min(batch, samples)
            sizes = {min(max(least, batch // part), most) for part in PARTS}
            self._sizes = sorted(sizes, reverse=True)

    @property
    def wanted(self) -> int:
        """Return the samples of the next batch."""
        return self._sizes[self._turn]

    @property
    def begins(self) -> bool:
        """Whether the next step is the first of a round: warm-up, at the largest size."""
        return self._turn == 0 and not self._block and not self._skipped

    def begin(self, now: float) -> None:
        """Begin a batch: the first of a step, or another one for the same step."""
        self._started = now if self._started is None else self._started
        self._began = now if self._began is None else self._began

    def received(self, samples: int, seconds: float) -> None:
        self._parts.append(samples)
        self._input += seconds

    def updated(self, seconds: float) -> None:
        self._update = (self._update or 0.0) + seconds
        self.updates += 1

    def end(self, now: float) -> None:
        """End a step, if there was an update, when the next batch is about to be asked for."""
        if self._update is None or self._began is None or self._started is None:
            return
        parts, seconds = self._parts, now - self._began
        compute = max(0.0, seconds - self._input - self._update)
        step = StepSeconds(sum(parts), self._input, compute, self._update)
        self._batches = len(parts)
        self.drop()
        if len(set(parts)) == 1:
            self._note(step, seconds)
        complete = len({block[0].samples for block in self.blocks}) >= len(self._sizes)
        self.over = now - self._started >= self._seconds * (STEPS_SHARE if complete else 1.0)

    def _note(self, step: StepSeconds, seconds: float) -> None:
        if self._block and step.samples != self._block[0].samples:
            self._block, self._skipped = [], 0
        if not self._block:
            first = all(block[0].samples != step.samples for block in self.blocks)
            if self._skipped < (1 if seconds > _FAST else 5 if first else 2):
                self._skipped += 1
                self._warm_up = step
                return
            self.blocks.append(self._block)
        self._block.append(step)
        spent = sum(step.input + step.compute + step.update for step in self._block)
        share = STEPS_SHARE * self._seconds / (_ROUNDS * len(self._sizes))
        if len(self._block) >= _LEAST_STEPS and spent >= share:
            self._turn = (self._turn + 1) % len(self._sizes)
            self._block, self._skipped = [], 0

    @property
    def found(self) -> Sequence[Block]:
        """Return the measured blocks; if there are none, the last step of the warm-up."""
        return self.blocks or ([[self._warm_up]] if self._warm_up else [])

    @property
    def batch(self) -> int:
        """Samples of a step of the script, which may take several batches."""
        return self._batch * self._batches


LEAST_ERROR = 0.05
"""The least relative error: no machine repeats itself more closely from one hour to the next."""
MOST_ERROR = 0.5
_ONE_SIZE = 0.25
_ONE_BLOCK = 0.1


class StepSeconds(NamedTuple):
    """The seconds of one step: to read its batches, to compute its gradient, to update."""

    samples: int
    input: float
    compute: float
    update: float


Block = list[StepSeconds]
"""One or more steps of one size, one after another."""


def costs_of(blocks: Sequence[Block]) -> MachineCosts:
    """Compute what a worker's steps cost, without its start, its evaluation and its memory."""
    computing = _by_size(blocks, "compute")
    reading = {n: statistics.median(means) for n, means in _by_size(blocks, "input").items()}
    # Take the lower quartile: other programs, and gaps that tensors of other sizes left in memory,
    # make blocks slower, and nothing makes them faster.
    points = {n: float(np.quantile(means, 0.25)) for n, means in computing.items()}
    (fixed, each), (fixed_input, each_input) = fit_line(points), fit_line(reading)
    work = WorkCurve(
        # The part of reading that does not depend on the samples also belongs to every step.
        fixed=fixed + fixed_input,
        each=each,
        variation=_variation(blocks),
        error=_error(computing, points, fixed, each),
        smallest=min(points),
        largest=max(points),
    )
    updates = (statistics.fmean(step.update for step in block) for block in blocks)
    return MachineCosts(work=work, update=statistics.median(updates), input=each_input)


def fit_line(points: Mapping[int, float]) -> tuple[float, float]:
    """Fit ``(fixed, each)``, neither below 0, by the least squares of relative errors."""
    n, t = np.array(list(points), float), np.array(list(points.values()))
    weights = 1.0 / np.maximum(t, 1e-12)
    each, fixed = np.polyfit(n, t, 1, w=weights) if len(points) > 1 else (0.0, -1.0)
    if fixed < 0:  # then fit through the origin
        return 0.0, float(np.average(t / n, weights=(weights * n) ** 2))
    if each < 0:
        return float(np.average(t, weights=weights**2)), 0.0
    return float(fixed), float(each)


def _by_size(blocks: Sequence[Block], field: str) -> dict[int, list[float]]:
    """Return each block's mean, by size: a script may do some of its work every tenth step only."""
    found: dict[int, list[float]] = {}
    for block in blocks:
        mean = statistics.fmean(map(attrgetter(field), block))
        found.setdefault(block[0].samples, []).append(mean)
    return found


def _variation(blocks: Sequence[Block]) -> float:
    shares = []
    for block in blocks:
        mean = statistics.fmean(step.compute for step in block)
        if len(block) > 1 and mean > 0:
            shares += [step.compute / mean for step in block]
    return statistics.pstdev(shares) if shares else 0.0


def _error(
    computing: Mapping[int, Sequence[float]], points: Mapping[int, float], fixed: float, each: float
) -> float:
    """Return the relative error, from each size's spread of blocks and distance to the line."""
    spreads = [
        2.0 * statistics.stdev(means) / math.sqrt(len(means)) / points[samples]
        for samples, means in computing.items()
        if len(means) > 1 and points[samples] > 0
    ]
    spread = statistics.fmean(spreads) if spreads else _ONE_BLOCK
    if len(points) == 1:
        spread = max(spread, _ONE_SIZE)
    misses = [abs(fixed + each * n - t) / t for n, t in points.items() if t > 0]
    miss = statistics.fmean(misses) if misses else 0.0
    return min(MOST_ERROR, max(LEAST_ERROR, math.hypot(spread, miss)))
