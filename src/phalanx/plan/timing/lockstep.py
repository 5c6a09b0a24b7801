"""Strategies whose workers meet: every step, or every few steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phalanx.plan.timing.outcome import Outcome, Trace
from phalanx.plan.timing.work import Floats, Lost, Slow, StepDraws

CHUNK = 1 << 17
"""Worker-steps that are computed at once: what fits a processor's cache."""


def run_lockstep(
    compute: NDArray[np.float64],
    variation: float,
    exchange: float,
    steps: int,
    *,
    seed: int,
    every: int = 1,
    slow: Slow = (),
    lost: Lost = (),
    draws: Floats | None = None,
    trace: Trace | None = None,
) -> Outcome:
    """``steps`` of each worker, with a meeting of ``exchange`` seconds after every few of them.

    ``compute``: mean seconds of a step of each worker. The others do a lost worker's share: their
    steps take longer in proportion. ``draws`` replaces what is drawn, a row for each worker.
    """
    drawn = StepDraws(compute, variation, seed, slow=slow, table=draws)
    ends = np.full(drawn.workers, steps)
    for worker, step in lost:
        ends[worker] = min(ends[worker], step)
    waited, seconds, done = np.zeros(drawn.workers), 0.0, 0
    rounds = max(1, CHUNK // (drawn.workers * every))
    for first in range(0, steps, rounds * every):
        count = min(rounds * every, steps - first)
        spent = drawn.block(first, count)
        if lost:
            present = np.arange(first, first + count)[:, None] < ends
            spent = _shared_out(spent, present)
            done += int(present.sum())
        else:
            done += spent.size
        own = spent
        if every > 1:
            own = np.add.reduceat(spent, np.arange(0, count, every), axis=0)
        longest = own.max(axis=1)
        if trace is not None:
            _tell(trace, spent, first, every, seconds, longest, exchange, ends)
        idle = longest[:, None] - own
        if lost:  # a worker that is gone does not wait
            idle *= present[np.minimum(np.arange(1, len(own) + 1) * every, count) - 1]
        waited += idle.sum(axis=0)
        seconds += float(longest.sum()) + len(own) * exchange
    return Outcome(seconds, done, waited, np.zeros(0, np.int64))


def _shared_out(spent: Floats, present: NDArray[np.bool_]) -> Floats:
    """Those who are present do everything."""
    return np.asarray(spent * present * (present.shape[1] / np.maximum(1, present.sum(1)))[:, None])


def _tell(
    trace: Trace,
    spent: Floats,
    first: int,
    every: int,
    began: float,
    longest: Floats,
    exchange: float,
    ends: NDArray[np.int64],
) -> None:
    """Updates are meetings here, so a step's number says how many there have been."""
    for number, seconds in enumerate(longest.tolist()):
        met, rows = began + seconds, range(number * every, min((number + 1) * every, len(spent)))
        starts = np.full(spent.shape[1], began)
        for row in rows:
            after = starts + spent[row]
            for rank, (start, end) in enumerate(zip(starts.tolist(), after.tolist(), strict=True)):
                if first + row < ends[rank]:
                    admitted = met if row == rows[-1] else end
                    trace(rank, first + row, start, admitted, (first + row) // every)
            starts = after
        began = met + exchange
