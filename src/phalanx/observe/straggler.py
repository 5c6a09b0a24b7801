"""Who the others wait for.

In lockstep everyone waits for the last gradient. The worker that is last is not the one that
waits long but the one that waits least, so blame is read from the moment each gradient was
ready, before any barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.observe.timeline import PhaseSteps, Step

SHARE_OF_COST = 0.03
"""A straggler is worth naming when the others lose at least this share of their time to it."""


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that is last most often."""

    rank: int
    share: float
    """The part of the lockstep steps in which its gradient came last."""
    steps: int
    seconds: float
    """What the other workers together waited for it."""


def find_straggler(phases: Sequence[PhaseSteps]) -> Straggler | None:
    """The clear straggler of the lockstep phases, or ``None``."""
    last: dict[int, int] = {}
    cost: dict[int, float] = {}
    total = spent = 0.0
    for row in (row for phase in phases if phase.lockstep for row in _together(phase)):
        late = max(row, key=lambda step: step.ready)
        last[late.rank] = last.get(late.rank, 0) + 1
        waited = sum(late.ready - step.ready for step in row)
        cost[late.rank] = cost.get(late.rank, 0.0) + waited
        total += 1
        spent += sum(step.seconds for step in row if step is not late)
    if not total:
        return None
    rank = max(sorted(last), key=lambda r: last[r])
    share = last[rank] / total
    if share < _least_share(phases) or cost[rank] < SHARE_OF_COST * spent:
        return None
    return Straggler(rank=rank, share=share, steps=int(total), seconds=cost[rank])


def _least_share(phases: Sequence[PhaseSteps]) -> float:
    """Well above the 1/n that chance alone would give each worker."""
    workers = max(len(phase.steps) for phase in phases)
    return max(0.5, 1.5 / workers)


def _together(phase: PhaseSteps) -> list[tuple[Step, ...]]:
    """The steps that the workers took together, one of each rank.

    Counted from the start of the phase: after an asynchronous phase the ranks' own numbers differ.
    """
    if len(phase.steps) < 2:
        return []
    return list(zip(*phase.steps, strict=False))
