"""What one global batch costs under one phase of a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import hypot
from statistics import NormalDist

MEMORY_SPEED = 4e9
"""Bytes a second that a worker adds up in shared memory (2-core ARM machine)."""
BARRIER_SECONDS = 60e-6
"""Two barriers of workers on one host."""
MEETING_SECONDS = 0.6e-3
"""What a step between hosts takes besides its collective: meeting, copies (``hosts-steps``: 14.1 ms
a step, of which 4.4 are computing and 8.9 the link)."""


@dataclass(frozen=True)
class StepCost:
    """Seconds of one global batch, and where they go."""

    seconds: float
    error: float
    """A share of the seconds."""
    computing: float
    """Of the worker that computes longest, with its update."""
    exchange: float
    """What is not hidden behind computing."""
    samples: list[float]
    """By worker."""
    busy: list[float]
    """Seconds of each worker that it computes."""
    slowest: str = ""
    """The machine that computes longest."""
    link: str = ""
    """What the exchange waits for, in words."""
    servers: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def lateness(workers: int) -> float:
    """By how many standard deviations the latest of so many is late, on average (Blom)."""
    if workers < 2:
        return 0.0
    return NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def combined(parts: Sequence[tuple[float, float]]) -> float:
    """The error of a sum of (seconds, error) that are wrong independently, as a share."""
    whole = sum(seconds for seconds, _ in parts)
    if whole <= 0.0:
        return 0.0
    return hypot(*(seconds * error for seconds, error in parts)) / whole
