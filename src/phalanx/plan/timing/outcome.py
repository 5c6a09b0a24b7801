"""What an engine answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Trace = Callable[[int, int, float, float, int], object]
"""Gets rank, step, when its computing began, when the worker was admitted to go on after it, and
how many updates were in the parameters that it was computed with."""


@dataclass(frozen=True)
class Outcome:
    """A training, or a piece of one, in virtual time."""

    seconds: float
    """Virtual time at the end."""
    steps: int
    """Worker-steps done."""
    waited: NDArray[np.float64]
    """Seconds that each worker waited for others: at barriers, gates, and servers."""
    staleness: NDArray[np.int64]
    """How often so many updates of others were in between; empty in lockstep."""

    @property
    def mean_staleness(self) -> float:
        pushes = int(self.staleness.sum())
        if pushes == 0:
            return 0.0
        return float(self.staleness @ np.arange(len(self.staleness))) / pushes


def histogram(numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.bincount(np.asarray(numbers, np.int64))
