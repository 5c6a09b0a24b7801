"""The runs that pages look at, and what pages are told while they watch.

One thread reads files, once a second for all pages together, and only while a page asks or watches:
a run that nobody looks at costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from phalanx.core.background import BackgroundThread
from phalanx.observe.events.event_types import MachineSample
from phalanx.watch.feed.pool_view import PoolFeed
from phalanx.watch.feed.run_feed import RunFeed
from phalanx.watch.feed.runs_list import RunList, find_run, list_runs

T = TypeVar("T")
NEWEST = 200
MOST_FEEDS = 16
PERIOD, LIST_PERIOD = 1.0, 2.0
"""Seconds between two looks at a run, and at the list of runs."""
BUSY_PERIOD = 0.02
"""Seconds between two looks at a run whose history is not read to its end yet."""
FRESH = 0.9 * PERIOD
"""Seconds for which a reading is new enough: pages that look at the same second share it."""
CHARTS_PERIOD, LONGEST_CHARTS_PERIOD = 2 * FRESH, 15.0
CHARTS_SHARE = 0.01
"""The share of a core that drawing may take: what costs more is drawn less often."""
KEEP_ALIVE = 15.0
CHANGED = b'{"changed":true}'


@dataclass(frozen=True)
class Look:
    """What a page that watches is shown."""

    state: bytes
    more: str
    """The event that tells of something else to ask for,"""
    number: int
    """which is sent when this number is another one."""
    wait: float


class Kept:
    """One run's feed, and the answers that were made since its files were last read."""

    def __init__(self, feed: RunFeed) -> None:
        self.feed = feed
        self.drawing = 0
        """The number of times that there was more to draw."""
        self._read = self._drawn = float("-inf")
        self._changed = False
        self._spent = 0.0
        self._answers: dict[Hashable, bytes] = {}

    def refresh(self) -> None:
        """Read what is new, unless that was just done and nothing older is left to read."""
        now = time.monotonic()
        if now - self._read < FRESH and self.feed.building is None:
            return
        self._read = now
        self._changed |= self.feed.refresh()
        self._answers.clear()
        period = min(max(CHARTS_PERIOD, self._spent / CHARTS_SHARE), LONGEST_CHARTS_PERIOD)
        if self._changed and now - self._drawn >= period:
            self._drawn, self._changed = now, False
            self._spent = 0.0
            self.drawing += 1

    def answer(self, key: Hashable, make: Callable[[RunFeed], Any]) -> bytes:
        """Return what ``make`` finds, as JSON; all pages share it."""
        if key not in self._answers:
            began = time.thread_time()
            self._answers[key] = msgspec.json.encode(make(self.feed))
            self._spent += time.thread_time() - began
        return self._answers[key]


class Library:
    """All runs in ``home``, and the machines of a pool, if there is one.

    Coroutines ``ask`` for what the other methods return: only the reading thread may call those.
    """

    def __init__(self, home: Path, pool: PoolFeed | None = None) -> None:
        self.pool = pool
        self.ended = asyncio.Event()
        """Lets all pages go; they connect again when there is a server."""
        self._home = home
        self._thread = BackgroundThread("phalanx-watch")
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._list, self._listed = b"", float("-inf")

    async def ask(self, function: Callable[..., T], *given: Any) -> T:
        found: T = await asyncio.wrap_future(self._thread.submit(function, *given))
        return found

    def take(self, machine: str, sample: MachineSample | None) -> None:
        """Take a reading of a machine of the pool, or that it does not answer; from any thread."""
        if self.pool is not None:
            self._thread.submit(self.pool.take, machine, sample)

    def close(self, seconds: float) -> None:
        """Keep what was added up for the next server; wait for that a little."""
        for kept in list(self._kept.values()):
            self._thread.submit(kept.feed.close)
        self._thread.close(seconds)

    def fresh(self, run: str) -> Kept:
        paths = find_run(self._home, run)  # also for a known one: its folder may be gone
        if run not in self._kept:
            self._kept[run] = Kept(RunFeed(paths))
        self._kept.move_to_end(run)
        while len(self._kept) > MOST_FEEDS:
            self._kept.popitem(last=False)[1].feed.close()
        self._kept[run].refresh()
        return self._kept[run]

    def answer(self, run: str, key: Hashable, make: Callable[[RunFeed], Any]) -> bytes:
        return self.fresh(run).answer(key, make)

    def runs(self, limit: int = NEWEST, before: str | None = None) -> RunList:
        return list_runs(self._home, limit, before)

    def look_at_run(self, run: str) -> Look:
        kept = self.fresh(run)
        state = kept.answer("state", RunFeed.view)
        wait = PERIOD if kept.feed.building is None else BUSY_PERIOD
        return Look(state, "charts", kept.drawing, wait)

    def look_at_all(self) -> Look:
        now = time.monotonic()
        if now - self._listed >= FRESH:
            self._list, self._listed = msgspec.json.encode(self.runs()), now
        number = 0 if self.pool is None else time.monotonic_ns()  # it has more each second
        return Look(self._list, "pool", number, LIST_PERIOD)

    async def events(self, look: Callable[[], Look]) -> AsyncGenerator[bytes, None]:
        """Tell a page of changes, until it goes or the server ends.

        A page that does not read is waited for, and shown the newest state afterwards.
        """
        state, number = b"", 0
        silent = 0.0
        while not self.ended.is_set():
            try:
                found = await self.ask(look)
            except Exception:  # the folder is gone, or is half removed: the page asks again
                return
            text = event("state", found.state) if found.state != state else b""
            if found.number != number:
                text += event(found.more, CHANGED)
            if text or silent >= KEEP_ALIVE:
                silent = 0.0
                yield text or b": keep-alive\n\n"
            state, number = found.state, found.number
            silent += found.wait
            with contextlib.suppress(TimeoutError):
                # All pages look at the same moment, so that one reading is enough.
                async with asyncio.timeout(found.wait - time.monotonic() % found.wait):
                    await self.ended.wait()


def event(name: str, data: bytes) -> bytes:
    """Return one server-sent event; JSON has no line end in it."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
