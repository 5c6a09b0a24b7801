"""The feeds of the runs that pages look at: made once, read at most once a second, kept few.

Only one thread may use a library. Answers are kept as JSON until the run's files have more, so that
three pages cost little more than one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import msgspec

from phalanx.observe.summary.run_status import RUNNING
from phalanx.watch.feed.pool_view import PoolFeed
from phalanx.watch.feed.run_feed import RunFeed
from phalanx.watch.feed.runs_list import find_run, list_runs
from phalanx.watch.streams import BUSY_PERIOD, PERIOD, SLOW_PERIOD, Look

MOST_FEEDS = 16
MOST_ANSWERS = 64
FRESH = 0.9
"""Seconds for which a reading is new enough."""
NEWEST = 200
LIST_PERIOD = 2.0


class Kept:
    """One run's feed, and the answers that were made from it since it last changed."""

    def __init__(self, feed: RunFeed) -> None:
        self.feed = feed
        self._read = float("-inf")
        self._answers: dict[Hashable, bytes] = {}
        self.spent = 0.0
        """Seconds of processor time that answers have taken."""

    def refresh(self, older: float = FRESH) -> bool:
        """Read what is new, unless that was done of late; return whether there was something."""
        if time.monotonic() - self._read < older:
            return False
        changed = self.feed.refresh()
        self._read = time.monotonic()
        if changed:
            self._answers.clear()
        return changed

    def answer(self, key: Hashable, make: Callable[[RunFeed], Any]) -> bytes:
        known = self._answers.get(key)
        if known is None:
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.clear()
            began = time.thread_time()
            known = self._answers[key] = msgspec.json.encode(make(self.feed))
            self.spent += time.thread_time() - began
        return known


class Library:
    """All runs in ``home``, and the machines of a pool, if there is one."""

    def __init__(self, home: Path, pool: PoolFeed | None = None) -> None:
        self._home, self.pool = home, pool
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def kept(self, run: str) -> Kept:
        paths = find_run(self._home, run)  # also for a known one: its folder may be gone
        known = self._kept.get(run)
        if known is None:
            known = self._kept[run] = Kept(RunFeed(paths))
        self._kept.move_to_end(run)
        while len(self._kept) > MOST_FEEDS:
            self._kept.popitem(last=False)[1].feed.close()
        return known

    def close(self) -> None:
        """Keep what was added up for the next server."""
        while self._kept:
            self._kept.popitem()[1].feed.close()

    def fresh(self, run: str) -> Kept:
        known = self.kept(run)
        known.refresh()
        return known

    def about(self, run: str) -> Any:
        return self.fresh(run).feed.view()

    def answer(self, run: str, key: Hashable, make: Callable[[RunFeed], Any]) -> bytes:
        return self.fresh(run).answer(key, make)

    def runs(self, limit: int = NEWEST, before: str | None = None) -> Any:
        return list_runs(self._home, limit, before)

    def look_at_run(self, run: str) -> Look:
        known = self.kept(run)
        changed = known.refresh(0.0)
        view = known.feed.view()
        ended = SLOW_PERIOD if view.status != RUNNING and not changed else PERIOD
        wait = ended if view.building is None else BUSY_PERIOD
        return Look(view, changed, wait=wait, spent=known.spent)

    def look_at_all(self) -> Look:
        extra = () if self.pool is None else (("pool", {"changed": True}),)
        return Look(self.runs(), extra=extra, wait=LIST_PERIOD)
