"""From measured blocks of steps to curves. Pure, without torch."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.plan.job import WorkCurve

LEAST_ERROR = 0.05
"""No machine repeats itself more closely from one hour to the next."""
MOST_ERROR = 0.5
_ONE_SIZE = 0.25
_ONE_BLOCK = 0.1


@dataclass(frozen=True)
class StepSeconds:
    """One step: what its batches took to be read, its gradient to be computed, its update."""

    samples: int
    input: float
    compute: float
    update: float


@dataclass
class StepBlock:
    """Steps of one size, one after another."""

    samples: int
    steps: list[StepSeconds] = field(default_factory=list)

    def mean(self, of: Callable[[StepSeconds], float]) -> float:
        return statistics.fmean(of(step) for step in self.steps)


@dataclass(frozen=True)
class StepCosts:
    work: WorkCurve
    update: float
    input: float
    """Seconds per sample."""


def costs_of(blocks: Sequence[StepBlock]) -> StepCosts:
    """Of blocks that have at least a step each."""
    computing = _by_size(blocks, lambda step: step.compute)
    reading = fit_line({n: statistics.median(means) for n, means in _reading(blocks).items()})
    points = {samples: _undisturbed(means) for samples, means in computing.items()}
    fixed, each = fit_line(points)
    work = WorkCurve(
        # What reading takes however few the samples are is a part of every step as well.
        fixed=fixed + reading[0],
        each=each,
        variation=_variation(blocks),
        error=_error(computing, points, fixed, each),
        smallest=min(points),
        largest=max(points),
    )
    update = statistics.median(block.mean(lambda step: step.update) for block in blocks)
    return StepCosts(work, update, reading[1])


def fit_line(points: Mapping[int, float]) -> tuple[float, float]:
    """``(fixed, each)``, neither below 0, with the least squares of relative errors.

    The points are medians, so that none of them is an accident.
    """
    weights = {n: 1.0 / max(t, 1e-12) ** 2 for n, t in points.items()}
    total = sum(weights.values())
    mean_n = sum(w * n for n, w in weights.items()) / total
    mean_t = sum(w * points[n] for n, w in weights.items()) / total
    spread = sum(w * (n - mean_n) ** 2 for n, w in weights.items())
    along = sum(w * (n - mean_n) * (points[n] - mean_t) for n, w in weights.items())
    each = along / spread if spread > 0 else 0.0
    fixed = mean_t - each * mean_n
    if spread <= 0 or fixed < 0:  # through the origin
        squares = sum(w * n * n for n, w in weights.items())
        return 0.0, sum(w * n * points[n] for n, w in weights.items()) / squares
    return (mean_t, 0.0) if each < 0 else (fixed, each)


def _by_size(
    blocks: Sequence[StepBlock], of: Callable[[StepSeconds], float]
) -> dict[int, list[float]]:
    """The blocks' means: some of what a script does comes with every tenth step only."""
    found: dict[int, list[float]] = defaultdict(list)
    for block in blocks:
        found[block.samples].append(block.mean(of))
    return found


def _reading(blocks: Sequence[StepBlock]) -> dict[int, list[float]]:
    return _by_size(blocks, lambda step: step.input)


def _undisturbed(means: Sequence[float]) -> float:
    """The lower quartile: other programs, and gaps that tensors of other sizes have left in memory,
    make a block slower, and nothing makes it faster."""
    if len(means) == 1:
        return means[0]
    return statistics.quantiles(means, n=4, method="inclusive")[0]


def _variation(blocks: Sequence[StepBlock]) -> float:
    shares = []
    for block in blocks:
        mean = block.mean(lambda step: step.compute)
        if len(block.steps) > 1 and mean > 0:
            shares += [step.compute / mean for step in block.steps]
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
