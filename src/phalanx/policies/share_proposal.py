"""Batch shares with which all workers would be ready together, from what their steps took. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.policies.fitting_shares import fitting_shares

WORTH_TRYING = 1.05
"""Shares are tried when the steps should become faster by this."""
LARGEST = 4.0
"""No share changes by more than this factor at once."""
FLOOR = 50
"""No share is below 1 / (FLOOR * workers): a slow worker keeps a little, to be measured again."""
FIXED_MOST = 0.75
RECENT, CHANGED = 3, 1.5
"""So many ticks in a row, so many times longer or shorter than before, are not chance alone."""


@dataclass(frozen=True)
class Tick:
    """A step of all workers, or a few short ones together."""

    sizes: Sequence[float]
    """Samples of each worker in a step; 0: it made none, and nothing is known of it."""
    busy: Sequence[float]
    """Seconds that each worker took for reading and computing them, without waits."""
    pace: float
    """Seconds of all workers together per sample, including waits."""


@dataclass(frozen=True)
class Proposal:
    shares: list[float]
    gain: float
    """How many times as fast the steps should become."""


def propose(
    ticks: Sequence[Tick], shares: Sequence[float], fixed: Sequence[float]
) -> Proposal | None:
    """Shares with which all would be ready together; ``None`` where the evidence is too small.

    ``fixed`` is what a step costs each worker whatever its size, as far as it is known.
    """
    known = [r for r in range(len(shares)) if all(tick.sizes[r] > 0.0 for tick in ticks)]
    if len(known) < 2:
        return None
    low, high = zip(*(quartiles([tick.busy[r] for tick in ticks]) for r in known), strict=True)
    if max(low) <= min(high):  # all may be equally fast
        return None
    level = (max(low) + min(high)) / 2
    # Of the times between its quartiles, take the nearest to the others': only that is certain.
    times = [min(max(level, a), b) for a, b in zip(low, high, strict=True)]
    lap = statistics.median(tick.pace * sum(tick.sizes) for tick in ticks)
    if _gain(lap, max(times) - min(times)) < WORTH_TRYING:  # no shares could gain more
        return None
    sizes = [statistics.median(tick.sizes[r] for tick in ticks) for r in known]
    base = [min(fixed[r], FIXED_MOST * t) for r, t in zip(known, times, strict=True)]
    each = [(t - a) / n for t, a, n in zip(times, base, sizes, strict=True)]
    wanted = fitting_shares(list(zip(base, each, strict=True)), sum(sizes))
    found, batch = list(shares), sum(sizes) / sum(shares[r] for r in known)
    for rank, now, then in zip(known, sizes, wanted, strict=True):  # as it was: shares are rounded
        found[rank] = min(max(then, now / LARGEST), now * LARGEST) / batch
    found = _whole(found)
    later = [a + b * batch * found[r] for r, a, b in zip(known, base, each, strict=True)]
    gain = _gain(lap, max(times) - max(later))
    return Proposal(found, gain) if gain >= WORTH_TRYING else None


def _gain(lap: float, saved: float) -> float:
    return lap / (lap - saved) if saved < lap else math.inf


def changed(before: Sequence[Tick], now: Sequence[Tick]) -> bool:
    """Whether a worker has become slower or faster: with the same shares, all its times ``now`` are
    out of the range of those ``before``."""
    if min(len(before), len(now)) < RECENT:
        return False
    for rank in range(len(now[0].busy)):
        low, high = quartiles([tick.busy[rank] for tick in before])
        took = [tick.busy[rank] for tick in now]
        if min(took) > CHANGED * high or CHANGED * max(took) < low:
            return True
    return False


def fixed_cost(
    small: tuple[float, float, float], large: tuple[float, float, float]
) -> float | None:
    """What a step costs at least at any size; ``None`` where the two sizes are too alike.

    Each size comes with the quartiles of its seconds. The estimate is rather too small than too
    large: then shares need more rounds to settle, instead of going too far.
    """
    (n, short, _), (m, _, long) = small, large
    if n <= 0.0 or m < 1.2 * n:
        return None
    each = min(max((long - short) / (m - n), 0.0), long / m)
    return max(0.0, short - each * n)


def faster(new: Sequence[float], old: Sequence[float]) -> float:
    """How often a value of ``new`` is below one of ``old``: 1 always, 0.5 where they are alike."""
    wins = sum((a < b) + (a == b) / 2 for a in new for b in old)
    return wins / (len(new) * len(old))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]


def _whole(shares: Sequence[float]) -> list[float]:
    """Scale shares to a sum of 1 and raise those below the floor, at the cost of the others."""
    floor = 1.0 / (FLOOR * len(shares))
    raised: set[int] = set()
    while True:
        whole = sum(share for rank, share in enumerate(shares) if rank not in raised)
        rest = 1.0 - floor * len(raised)
        found = [floor if r in raised else rest * s / whole for r, s in enumerate(shares)]
        low = {rank for rank, share in enumerate(found) if share < floor}
        if not low:
            return found
        raised |= low
