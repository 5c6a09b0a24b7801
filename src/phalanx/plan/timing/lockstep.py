"""Simulates strategies whose workers meet at every step, or every few steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phalanx.plan.timing.work import Floats, Outcome, StepDraws

CHUNK = 1 << 17
"""Worker-steps that are computed at once: what fits a processor's cache."""


def run_lockstep(
    compute: Sequence[float] | Floats,
    variation: float,
    exchange: float,
    steps: int,
    *,
    seed: int,
    every: int = 1,
    draws: Floats | None = None,
) -> Outcome:
    """Simulate ``steps`` of each worker; after every few, a meeting takes ``exchange`` seconds.

    ``compute``: mean seconds of a step of each worker. ``draws`` replaces what is drawn, a row for
    each worker.
    """
    drawn = StepDraws(compute, variation, seed, draws)
    waited, seconds = np.zeros(drawn.workers), 0.0
    rounds = max(1, CHUNK // (drawn.workers * every))
    for first in range(0, steps, rounds * every):
        count = min(rounds * every, steps - first)
        spent = drawn.block(first, count)
        own = spent
        if every > 1:
            own = np.add.reduceat(spent, np.arange(0, count, every), axis=0)
        longest = own.max(axis=1)
        waited += (longest[:, None] - own).sum(axis=0)
        seconds += float(longest.sum()) + len(own) * exchange
    done = np.full(drawn.workers, steps)
    return Outcome(seconds, done, waited, np.zeros(0, np.int64))
