"""Workers that have sent nothing for so long that the user should know.

A worker writes at least a sign of life every few seconds, from a thread of its own: one that is
silent is stopped, starved of memory or stuck in code that lets no other thread run. In lockstep
all others then wait for it. It is only reported, never ended for it: a full disk
silences a worker that trains well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from phalanx.observe.events.event_types import Event, Finished, Joined, WorkerLost

MOST_STEP = 1.0
"""Seconds between two questions that count; more is a sleep."""
LIMIT = 40.0
"""Seconds without a sign of life; the workers give one every 5."""


class Patience:
    """Runs out some seconds after it was first asked for, however long this computer sleeps."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._asked: float | None = None

    def over(self) -> bool:
        now = time.monotonic()
        if self._asked is not None:
            self._left -= min(now - self._asked, MOST_STEP)
        self._asked = now
        return self._left <= 0


class Silence:
    """Fed with every event; asked now and then for what there is to say."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._names: dict[int, str] = {}
        self._heard: dict[int, float] = {}
        self._silent: dict[int, float] = {}

    def take(self, event: Event) -> None:
        if isinstance(event, Joined) and event.pid:  # another system's gives no signs of life
            self._names[event.rank] = f"worker {event.rank} on {event.machine}"
        if isinstance(event, WorkerLost):
            self._forget(event.worker)
        elif isinstance(event, Finished):
            self._forget(event.rank)
        elif event.rank in self._names:
            self._heard[event.rank] = self._clock()

    def excuse(self) -> None:
        """It was this computer that slept: nothing could arrive."""
        self._heard = dict.fromkeys(self._heard, self._clock())

    def news(self) -> Iterator[str]:
        """Of each silence once, and of its end."""
        now = self._clock()
        for rank, heard in self._heard.items():
            since = self._silent.get(rank)
            if since is None and now - heard >= LIMIT:
                self._silent[rank] = heard
                yield (
                    f"{self._names[rank]} has sent nothing for {LIMIT:.0f} s: it may be "
                    f"stopped, short of memory, or stuck"
                )
            elif since is not None and heard > since:
                del self._silent[rank]
                yield f"{self._names[rank]} responds again after {heard - since:.0f} s"

    def _forget(self, rank: int) -> None:
        for known in (self._names, self._heard, self._silent):
            known.pop(rank, None)
