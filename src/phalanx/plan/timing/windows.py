"""Many events at once, for large clusters whose links are no limit: ``async`` and ``ssp``, exactly.

The next step of each worker is drawn ahead. What arrives before any worker can have returned
does not depend on each other, but for the servers' queue: a window of such pushes is sorted, and
the queue is a running maximum (Lindley, "The theory of queues with a single server", 1952). A
window ends early where the lowest clock rises, because that admits those who wait.
"""

from __future__ import annotations

import math

import numpy as np

from phalanx.plan.timing.work import Floats, Ints, Outcome, Work

NEVER, NO_CLOCK = math.inf, np.iinfo(np.int64).max


def run_windows(work: Work, bound: int | None, latency: float, update: float) -> Outcome:
    """``bound``: how far a worker may be ahead of the slowest; ``None`` is without end."""
    return _Windows(work, bound, latency, update).run()


class _Windows:
    def __init__(self, work: Work, bound: int | None, latency: float, update: float) -> None:
        self._work, self._bound = work, bound
        self._latency, self._update = latency, update
        everyone, workers = np.arange(work.workers), work.workers
        self._clock, self._seen = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        self._waited, self._since = np.zeros(workers), np.full(workers, NEVER)
        self._present = work.more_of(everyone, self._clock)
        self._arrive = work.draws.many(everyone, self._clock) + latency
        self._arrive[~self._present] = NEVER
        self._ahead = work.draws.many(everyone, self._clock + 1)
        """Draws of the step after the current one."""
        self._staleness = np.zeros(0, np.int64)
        self._lowest, self._holders = 0, int(self._present.sum())
        """The lowest clock, and how many are at it."""
        self._version, self._free, self._seconds = 0, 0.0, 0.0
        self._ramp = np.arange(workers) * update

    def run(self) -> Outcome:
        while (who := self._window()) is not None:
            if self._bound is not None:
                holding = np.flatnonzero(self._clock[who] == self._lowest)
                self._holders -= len(holding)
                if self._holders == 0:  # with the last of them the lowest clock rises
                    who = who[: holding[-1] + 1]
            arrived, ramp = self._arrive[who], self._ramp[: len(who)]
            begun = np.maximum.accumulate(np.maximum(arrived - ramp, self._free)) + ramp
            self._serve(who, arrived, begun)
            if self._holders == 0 and self._bound is not None:
                self._release()
        return Outcome(self._seconds, self._work.done, self._waited, self._staleness)

    def _window(self) -> Ints | None:
        """Workers that arrive before any can have returned, in their order."""
        back = float((self._arrive + self._ahead).min()) + self._update + 2 * self._latency
        who = np.flatnonzero(self._arrive < back)
        if len(who) == 0:
            first = int(self._arrive.argmin())
            return None if self._arrive[first] == NEVER else np.array([first])
        return np.asarray(who[np.argsort(self._arrive[who], kind="stable")])

    def _serve(self, who: Ints, arrived: Floats, begun: Floats) -> None:
        count, done = len(who), begun + self._update
        self._free = float(done[-1])
        versions = np.arange(self._version, self._version + count)
        self._version += count
        late = np.bincount(versions - self._seen[who], minlength=len(self._staleness))
        late[: len(self._staleness)] += self._staleness
        self._staleness = late
        self._waited[who] += begun - arrived
        self._clock[who] += 1
        versions += 1
        if self._bound is not None:
            held = self._clock[who] - self._lowest > self._bound
            held[-1] &= self._holders > 0  # who lets the lowest clock rise goes on, and first
            if held.any():
                waiting, goes = who[held], ~held
                self._since[waiting], self._arrive[waiting] = done[held], NEVER
                who, done, versions = who[goes], done[goes], versions[goes]
        self._begin(who, done, versions)

    def _begin(self, who: Ints, now: Floats, versions: Ints) -> None:
        """Begin a step of the workers ``who``, which were admitted."""
        clocks, back = self._clock[who], now + self._latency
        more = self._work.more_of(who, clocks)
        if not more.all():
            gone = who[~more]
            self._present[gone], self._arrive[gone] = False, NEVER
            self._seconds = max(self._seconds, float(back[~more].max()))
            who, back, clocks, versions = who[more], back[more], clocks[more], versions[more]
        self._seen[who] = versions
        self._arrive[who] = back + self._ahead[who] + self._latency
        self._ahead[who] = self._work.draws.many(who, clocks + 1)

    def _release(self) -> None:
        """The lowest clock has risen: all who waited were one step too far ahead, and go on."""
        who = np.flatnonzero(self._since < NEVER)
        if len(who):
            self._waited[who] += self._free - self._since[who]
            self._since[who] = NEVER
            self._begin(who, np.full(len(who), self._free), np.full(len(who), self._version))
        clocks = self._clock[self._present]
        self._lowest = int(clocks.min(initial=NO_CLOCK))
        self._holders = int((clocks == self._lowest).sum())
