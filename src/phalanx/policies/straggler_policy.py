"""The online policy: decides when to leave synchronous training for a straggler, and to return.

After Li et al., "Sync-Switch: hybrid parameter synchronization for distributed deep learning"
(2021), which trains asynchronously while a worker is transiently slow. There a worker is compared
with the others; here with its own usual speed, so that a machine that is always slow, which
balanced shares take care of, is no straggler.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import Literal

Verdict = Literal["leave", "return"]

SLOW = 0.70
"""A worker below this part of its usual speed is slow."""
RECOVERED = 0.85
SLOW_OBSERVATIONS = 3
GOOD_OBSERVATIONS = 5
WARM_UP = 5
"""Observations before a worker's usual speed is known."""
MEMORY = 32
"""Good observations whose median is the usual speed."""
COOL_DOWN = 10
"""Observations after a verdict in which there is no other."""
PERMANENT = 600.0
"""Workers that are slow for so many seconds count as slow for good, and training returns."""


class StragglerPolicy:
    """Takes in speeds and gives out verdicts: "leave" and "return" in turn, "leave" first.

    A slowdown below 0.7 of the usual speed is answered at its third observation, a recovery at its
    fifth, but none before the eleventh observation after the last verdict. Noise of up to 15 % to
    either side never leaves (0.85 / 1.15 > 0.7), and with up to 8 % (0.92 / 1.08 > 0.85) it never
    delays the return.
    """

    def __init__(
        self, workers: int, *, least_seconds: float = 0.0, permanent: float = PERMANENT
    ) -> None:
        self._workers = [_Worker() for _ in range(workers)]
        self._least_seconds = least_seconds
        self._permanent = permanent
        self._rest = 0
        self._turned = 0.0
        self.away = False
        """Whether training is away: it left, or was away already when it was resumed."""

    def observe(self, speeds: Sequence[float], now: float) -> Verdict | None:
        """Take in ``speeds`` since the last observation (0: unknown); return a verdict, if any."""
        for worker, speed in zip(self._workers, speeds, strict=True):
            if speed > 0.0:
                worker.see(speed, now, learn=not self.away)
        self._rest = max(0, self._rest - 1)
        if self._rest:
            return None
        if not self.away:
            slow = any(w.is_slow(now, self._least_seconds) for w in self._workers)
            return self._turn("leave", now) if slow else None
        if now - self._turned >= self._permanent:
            for worker in self._workers:
                worker.accept()
        return self._turn("return", now) if all(w.is_back for w in self._workers) else None

    def _turn(self, verdict: Verdict, now: float) -> Verdict:
        self.away = verdict == "leave"
        self._turned = now
        self._rest = COOL_DOWN + 1
        return verdict


class _Worker:
    """Compares the speed of one worker with its own past."""

    def __init__(self) -> None:
        self._good: deque[float] = deque(maxlen=MEMORY)
        self._recent: deque[float] = deque(maxlen=GOOD_OBSERVATIONS)
        self._slow = 0
        self._slow_since = 0.0

    def see(self, speed: float, now: float, *, learn: bool) -> None:
        """Without ``learn``, keep the usual speed: a worker that trains apart, with other batches,
        has another speed."""
        self._recent.append(speed)
        if self._is_below(SLOW, speed):
            self._slow_since = self._slow_since if self._slow else now
            self._slow += 1
            return
        self._slow = 0
        if learn:
            self._good.append(speed)

    def accept(self) -> None:
        """Take the worker's present speed for its usual one, unless it is back to that already."""
        if not self.is_back:
            self._good = deque([statistics.median(self._recent)] * WARM_UP, maxlen=MEMORY)
            self._recent.clear()
            self._slow = 0

    def is_slow(self, now: float, least_seconds: float) -> bool:
        return self._slow >= SLOW_OBSERVATIONS and now - self._slow_since >= least_seconds

    @property
    def is_back(self) -> bool:
        """Whether the last observations are good: none is slow, and their median is as usual.

        The median, because one speed that is a little low should not delay the return.
        """
        if not self._recent:
            return True
        return not self._is_below(SLOW, min(self._recent)) and not self._is_below(
            RECOVERED, statistics.median(self._recent)
        )

    def _is_below(self, part: float, speed: float) -> bool:
        known = len(self._good) >= WARM_UP
        return known and speed < part * statistics.median(self._good)
