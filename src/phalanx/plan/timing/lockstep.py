"""Strategies whose workers meet: every step, or every few steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phalanx.plan.timing.work import Floats, Lost, Outcome, StepDraws, Work

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
    lost: Lost = (),
    draws: Floats | None = None,
) -> Outcome:
    """``steps`` of each worker, with a meeting of ``exchange`` seconds after every few of them.

    ``compute``: mean seconds of a step of each worker. The others do a lost worker's share: their
    steps take longer in proportion. ``draws`` replaces what is drawn, a row for each worker.
    """
    drawn = StepDraws(compute, variation, seed, draws)
    ends = Work(drawn, steps, lost=lost, by_samples=False).ends
    waited, seconds = np.zeros(drawn.workers), 0.0
    rounds = max(1, CHUNK // (drawn.workers * every))
    for first in range(0, steps, rounds * every):
        count = min(rounds * every, steps - first)
        spent = drawn.block(first, count)
        if lost:  # those who are present do everything
            present = np.arange(first, first + count)[:, None] < ends
            spent = spent * present * (drawn.workers / np.maximum(1, present.sum(1)))[:, None]
        own = spent
        if every > 1:
            own = np.add.reduceat(spent, np.arange(0, count, every), axis=0)
        longest = own.max(axis=1)
        idle = longest[:, None] - own
        if lost:  # a worker that is gone does not wait
            idle *= present[np.minimum(np.arange(1, len(own) + 1) * every, count) - 1]
        waited += idle.sum(axis=0)
        seconds += float(longest.sum()) + len(own) * exchange
    return Outcome(seconds, ends, waited, np.zeros(0, np.int64))
