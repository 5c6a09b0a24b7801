"""Strategies whose workers meet: every step, or every few steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phalanx.plan.timing.work import Floats, Ints, Lost, Outcome, StepDraws, Trace, Work

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
    trace: Trace | None = None,
) -> Outcome:
    """``steps`` of each worker, with a meeting of ``exchange`` seconds after every few of them.

    ``compute``: mean seconds of a step of each worker. The others do a lost worker's share: their
    steps take longer in proportion. ``draws`` replaces what is drawn, a row for each worker.
    """
    drawn = StepDraws(compute, variation, seed, draws)
    ends = Work(drawn, steps, lost=lost, by_samples=False).ends
    waited, seconds, done = np.zeros(drawn.workers), 0.0, 0
    rounds = max(1, CHUNK // (drawn.workers * every))
    for first in range(0, steps, rounds * every):
        count = min(rounds * every, steps - first)
        spent = drawn.block(first, count)
        done += spent.size
        if lost:  # those who are present do everything
            present = np.arange(first, first + count)[:, None] < ends
            spent = spent * present * (drawn.workers / np.maximum(1, present.sum(1)))[:, None]
            done += int(present.sum()) - spent.size
        own = spent
        if every > 1:
            own = np.add.reduceat(spent, np.arange(0, count, every), axis=0)
        longest = own.max(axis=1)
        if trace is not None:
            _tell(trace, spent, first, every, seconds, longest + exchange, exchange, ends)
        idle = longest[:, None] - own
        if lost:  # a worker that is gone does not wait
            idle *= present[np.minimum(np.arange(1, len(own) + 1) * every, count) - 1]
        waited += idle.sum(axis=0)
        seconds += float(longest.sum()) + len(own) * exchange
    return Outcome(seconds, done, waited, np.zeros(0, np.int64))


def _tell(
    trace: Trace,
    spent: Floats,
    first: int,
    every: int,
    began: float,
    rounds: Floats,
    exchange: float,
    ends: Ints,
) -> None:
    """Updates are meetings here, so a step's number says how many there have been."""
    met = began + np.cumsum(rounds)
    for row, seconds in enumerate(spent):
        number, place = divmod(row, every)
        if place == 0:
            starts = np.full(len(seconds), met[number] - rounds[number])
        after = starts + seconds
        last = place + 1 == every or row + 1 == len(spent)
        admitted = np.full(len(seconds), met[number] - exchange) if last else after
        step = first + row
        for rank in np.flatnonzero(step < ends).tolist():
            trace(rank, step, float(starts[rank]), float(admitted[rank]), step // every)
        starts = after
