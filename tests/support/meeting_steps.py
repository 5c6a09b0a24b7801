"""Workers that meet every few steps, one step after another: what the engine computes at once."""

from __future__ import annotations

from typing import Any

import numpy as np

Step = tuple[int, int, float, float, int]
"""Rank, step, when it began, when it was admitted to go on, updates in its parameters."""


def meeting_steps(
    seconds: np.ndarray[Any, Any], every: int = 1, exchange: float = 0.0
) -> list[Step]:
    """``seconds``: of each worker (rows), step by step."""
    found: list[Step] = []
    workers, steps = seconds.shape
    began = 0.0
    for first in range(0, steps, every):
        last = min(first + every, steps) - 1
        met = began + seconds[:, first : last + 1].sum(axis=1).max()
        for rank in range(workers):
            now = began
            for step in range(first, last + 1):
                after = now + seconds[rank, step]
                found.append((rank, step, now, met if step == last else after, step // every))
                now = after
        began = met + exchange
    return sorted(found)
