"""From measured blocks of steps to curves. Pure, without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from phalanx.plan.job import MachineCosts, WorkCurve

LEAST_ERROR = 0.05
"""No machine repeats itself more closely from one hour to the next."""
MOST_ERROR = 0.5
_ONE_SIZE = 0.25
_ONE_BLOCK = 0.1


class StepSeconds(NamedTuple):
    """One step: what its batches took to be read, its gradient to be computed, its update."""

    samples: int
    input: float
    compute: float
    update: float


Block = list[StepSeconds]
"""Successive steps of one size, at least one."""


def costs_of(blocks: Sequence[Block]) -> MachineCosts:
    """What a worker's steps cost, without its start, its evaluation and its memory."""
    computing = _by_size(blocks, "compute")
    reading = {n: statistics.median(means) for n, means in _by_size(blocks, "input").items()}
    # The lower quartile: other programs, and gaps that tensors of other sizes have left in memory,
    # make a block slower, and nothing makes it faster.
    points = {n: float(np.quantile(means, 0.25)) for n, means in computing.items()}
    (fixed, each), (fixed_input, each_input) = fit_line(points), fit_line(reading)
    work = WorkCurve(
        # The fixed seconds of reading are a part of every step as well.
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
    """``(fixed, each)``, neither below 0, with the least squares of relative errors."""
    n, t = np.array(list(points), float), np.array(list(points.values()))
    weights = 1.0 / np.maximum(t, 1e-12)
    each, fixed = np.polyfit(n, t, 1, w=weights) if len(points) > 1 else (0.0, -1.0)
    if fixed < 0:  # through the origin
        return 0.0, float(np.average(t / n, weights=(weights * n) ** 2))
    if each < 0:
        return float(np.average(t, weights=weights**2)), 0.0
    return float(fixed), float(each)


def _by_size(blocks: Sequence[Block], field: str) -> dict[int, list[float]]:
    """The blocks' means: some of what a script does comes with every tenth step only."""
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
    """From the spread of the blocks of a size, and from how far the sizes are from a line."""
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
