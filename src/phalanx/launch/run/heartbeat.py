"""Reports workers that have sent nothing for so long that the user should know.

A worker writes at least a sign of life every few seconds, from a separate thread. A silent worker
is stopped, short of memory, or stuck in code that lets no other thread run; in lockstep all others
then wait for it. A silent worker is only reported, never ended: it may train well, and only have a
full disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from phalanx.launch.link.progress_notes import EACH_WORD, FIRST_WORD
from phalanx.observe.events.event_types import Event, Finished, Joined, Steps, WorkerLost

MOST_STEP = 1.0
"""Most seconds between two calls of ``over``; in a longer pause this computer slept."""
LIMIT = 12.0
"""Seconds without a sign of life until this is reported; workers give one every 5 s."""
STANDSTILL = 60.0
"""Seconds without a step that are a standstill, if a machine is lost that no worker reports."""
AS_SHOWN = 2.0
"""A pause is a standstill only if it is so many times the longest one of the run so far."""


class Patience:
    """A time limit that begins with the first ``over()``, without this computer's sleep."""

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
    """Takes in the events of a run, and reports workers that are silent."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, awaited: Collection[int] = ()
    ) -> None:
        """``awaited``: the ranks that have to join."""
        self._clock = clock
        self._awaited = set(awaited)
        self._began = clock()
        self._due = self._began + FIRST_WORD
        self._names: dict[int, str] = {}
        self._heard: dict[int, float] = {}
        self._silent: dict[int, float] = {}
        self._stepped = self._began
        self._longest_pause = 0.0

    def take(self, event: Event) -> None:
        if isinstance(event, Joined):
            self._awaited.discard(event.rank)
        if isinstance(event, Joined) and event.pid:  # other systems give no signs of life
            self._names[event.rank] = f"worker {event.rank} on {event.machine}"
        if isinstance(event, Steps | Joined):
            pause = self._clock() - self._stepped if isinstance(event, Steps) else 0.0
            self._longest_pause = max(self._longest_pause, pause)
            self._stepped = self._clock()
        if isinstance(event, WorkerLost):
            self._forget(event.worker)
        elif isinstance(event, Finished):
            self._forget(event.rank)
        elif event.rank in self._names:
            self._heard[event.rank] = self._clock()

    def excuse(self, ranks: Collection[int]) -> None:
        """Start the silence of ``ranks`` anew: what is reported of their machine covers them."""
        for rank in self._heard.keys() & set(ranks):
            self._heard[rank] = self._clock()
            self._silent.pop(rank, None)

    def slept(self, seconds: float) -> None:
        """Leave ``seconds`` out of all pauses, because this computer slept and read no events."""
        for known in (self._heard, self._silent):
            known.update({rank: at + seconds for rank, at in known.items()})
        self._stepped += seconds

    def stands_still(self) -> bool:
        """Whether no worker has taken a step for longer than ``STANDSTILL`` and ``AS_SHOWN``."""
        pause = self._clock() - self._stepped
        return pause > max(STANDSTILL, AS_SHOWN * self._longest_pause)

    def news(self, named: Collection[int] = ()) -> Iterator[str]:
        """Yield a line for each silence and its end, but of ranks that were ``named`` already for
        the step that they do not finish; every minute, one on ranks yet to join."""
        now = self._clock()
        if self._awaited and now >= self._due:
            self._due = now + EACH_WORD
            names = ", ".join(f"worker {rank}" for rank in sorted(self._awaited))
            yield f"the run has waited {now - self._began:.0f} s for {names} to start training"
        for rank, heard in self._heard.items():
            since = self._silent.get(rank)
            if since is None and now - heard >= LIMIT and rank not in named:
                self._silent[rank] = heard
                yield (
                    f"{self._names[rank]} has sent nothing for {now - heard:.0f} s: it may be "
                    f"stopped, short of memory, or stuck; the run waits for it until it responds, "
                    f"or until you stop the run (Ctrl-C)"
                )
            elif since is not None and heard > since:
                del self._silent[rank]
                yield f"{self._names[rank]} responds again after {heard - since:.0f} s"

    def _forget(self, rank: int) -> None:
        for known in (self._names, self._heard, self._silent):
            known.pop(rank, None)
