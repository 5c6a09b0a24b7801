"""Whether two measurements differ by more than noise.

Repeated runs are distinguished when their ranges do not overlap and their medians are further apart
than either range is wide. Runs that were not repeated are judged by known differences of identical
runs: below :data:`NOISE` there is no claim, below :data:`TENTATIVE` only a tentative one.
"""

from __future__ import annotations

from enum import Enum

from phalanx.report.load import Spread
from phalanx.report.quality import Quality

NOISE = 0.05
TENTATIVE = 0.30
SHORT_SECONDS = 1.0  # of training: without repeats, no difference of shorter runs is clear
SAME = 5e-4
"""Smaller relative differences, which would be printed as 0, count as noise even if they repeat."""
NOISE_POINTS = 0.005
TENTATIVE_POINTS = 0.02


class Difference(Enum):
    """How certain the difference of two measurements is."""

    NOISE = "noise"
    TENTATIVE = "tentative"
    CLEAR = "clear"


def judge_times(a: Spread, b: Spread) -> Difference:
    """Whether two times differ."""
    apart = abs(a.middle - b.middle)
    if min(len(a.values), len(b.values)) > 1:
        return _judge_repeated(a, b, apart)
    if apart <= max(a.width, b.width):  # one was repeated, and its repeats differ as much
        return Difference.NOISE
    longer = max(a.middle, b.middle)
    found = _by_size(apart / longer if longer else 0.0, NOISE, TENTATIVE)
    if longer < SHORT_SECONDS and found is Difference.CLEAR:
        return Difference.TENTATIVE
    return found


def judge_quality(a: Spread, b: Spread, quality: Quality) -> Difference:
    """Whether two accuracies (in points) or losses (relative) differ."""
    apart = abs(a.middle - b.middle)
    largest = max(abs(a.middle), abs(b.middle), 1.0 if quality.is_share else 0.0)
    if apart < SAME * largest:
        return Difference.NOISE
    if min(len(a.values), len(b.values)) > 1:
        return _judge_repeated(a, b, apart)
    if quality.is_share:
        return _by_size(apart, NOISE_POINTS, TENTATIVE_POINTS)
    return _by_size(apart / largest if largest else 0.0, NOISE, TENTATIVE)


def _judge_repeated(a: Spread, b: Spread, apart: float) -> Difference:
    overlap = a.low <= b.high and b.low <= a.high
    noise = overlap or apart <= max(a.width, b.width)
    return Difference.NOISE if noise else Difference.CLEAR


def _by_size(apart: float, noise: float, tentative: float) -> Difference:
    if apart < noise:
        return Difference.NOISE
    return Difference.TENTATIVE if apart < tentative else Difference.CLEAR
