"""Batch shares in proportion to measured speed, so that all workers finish a step together.

Pure: speeds in, shares out; every worker that is told the same speeds comes to the same shares.
A speed is samples per second of input and compute, never of waiting.

A step of ``n`` samples takes ``a + b * n`` seconds, so a speed depends on the share at which it
was measured. Shares proportional to speeds are at rest exactly when all workers take equally long,
and each update takes off the part ``b * n / (a + b * n)`` of what is missing: always towards
the goal and never past it, so nothing needs damping, but fixed costs make it take several rounds.
Shares that have once changed come within 5 % of the least possible time of a step; equal ones
that are left alone because speeds hardly differ may lose a little more than 10 %.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

LEAST = 0.10
"""Shares change when a worker's speed differs from its share by more than this."""
SETTLED = 0.4
"""Once they have changed, they are refined down to this part of ``LEAST``: starting and stopping
at the same difference would leave workers unequal by nearly all of it, and noise would restart it.
"""
SETTLING_LOOKS = 6
FLOOR = 50
"""No share is below 1 / (FLOOR * workers): a slow worker keeps a little, to be measured again."""
FIRST_LOOK, RAREST_LOOK = 8, 64
CHANGED = 0.30
"""A speed that changes by more than this is looked at immediately."""


class Meter:
    """The speed of one worker: the median of its last steps, which ignores a hiccup."""

    def __init__(self, window: int = 10) -> None:
        self._rates: deque[float] = deque(maxlen=window)

    def add(self, samples: float, seconds: float) -> None:
        """A step. One without samples or without a duration says nothing about speed."""
        if samples > 0.0 and seconds > 0.0:
            self._rates.append(samples / seconds)

    def forget(self) -> None:
        """What was measured does not hold any more."""
        self._rates.clear()

    @property
    def value(self) -> float:
        """Samples per second; 0 is unknown."""
        return statistics.median(self._rates) if self._rates else 0.0


def shares(
    speeds: Sequence[float], previous: Sequence[float] | None = None, *, least: float = LEAST
) -> list[float] | None:
    """New shares, or ``None`` where the ``previous`` (``None``: equal) ones fit the speeds.

    They sum to 1. An unknown speed (0) counts as the mean of the known ones.
    """
    known = [rank for rank, speed in enumerate(speeds) if speed > 0.0]
    if not known:
        return None
    mean = statistics.fmean(speeds[rank] for rank in known)
    wanted = _floored([speed if speed > 0.0 else mean for speed in speeds])
    present = previous if previous is not None else [1.0 / len(speeds)] * len(speeds)
    if all(abs(wanted[rank] - present[rank]) <= least * present[rank] for rank in known):
        return None
    return wanted


def _floored(speeds: Sequence[float]) -> list[float]:
    """In proportion to ``speeds``, but none below the floor; the others give what that takes."""
    floor = 1.0 / (FLOOR * len(speeds))
    raised: set[int] = set()
    while True:
        whole = sum(speed for rank, speed in enumerate(speeds) if rank not in raised)
        rest = 1.0 - floor * len(raised)
        found = [floor if r in raised else rest * s / whole for r, s in enumerate(speeds)]
        low = {rank for rank, share in enumerate(found) if share < floor}
        if not low:
            return found
        raised |= low


class Balancer:
    """When to look at the speeds again, and what follows from them.

    After 8 steps at first, then after twice as many each time that nothing had to change, up to
    64; immediately when a speed changes by more than 30 %.
    """

    def __init__(
        self, workers: int, shares: Sequence[float] | None = None, *, least: float = LEAST
    ) -> None:
        self.shares = list(shares) if shares is not None else [1.0 / workers] * workers
        self._least = least
        self._pause = FIRST_LOOK
        self._next: int | None = None
        self._settling = 0
        self._seen: list[float] | None = None

    def observe(self, step: int, speeds: Sequence[float]) -> list[float] | None:
        """New shares, or ``None`` to go on as before. Steps grow from call to call."""
        if self._next is None:
            self._next = step + self._pause
        if self._has_changed(speeds):
            self._pause = FIRST_LOOK
        elif step < self._next:
            return None
        return self._look(step, speeds)

    def _has_changed(self, speeds: Sequence[float]) -> bool:
        if self._seen is None:
            return False
        pairs = [(a, b) for a, b in zip(self._seen, speeds, strict=True) if a > 0.0 and b > 0.0]
        return any(max(a, b) > (1.0 + CHANGED) * min(a, b) for a, b in pairs)

    def _look(self, step: int, speeds: Sequence[float]) -> list[float] | None:
        least = self._least * (SETTLED if self._settling else 1.0)
        found = shares(speeds, self.shares, least=least)
        if found is None:
            self._settling = 0
            self._seen = list(speeds)
            self._pause = min(2 * self._pause, RAREST_LOOK)
        else:
            large = shares(speeds, self.shares, least=self._least) is not None
            self._settling = SETTLING_LOOKS if large else self._settling - 1
            self.shares = found
            # At its new share a worker has another speed: there is nothing to compare it with.
            self._seen = None
            self._pause = FIRST_LOOK
        self._next = step + self._pause
        return found
