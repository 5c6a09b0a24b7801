"""What pages are told while they watch: one reading of a run for all of its pages.

Files are read by one thread, and only while a page asks or watches: a run that no page watches
costs nothing. Each page has a short queue; one that does not read it is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from phalanx.core.background import BackgroundThread

T = TypeVar("T")
PERIOD, SLOW_PERIOD = 1.0, 5.0
"""Seconds between two looks at a run, and at one that has ended."""
BUSY_PERIOD = 0.02
"""Seconds between two readings of a history that is not read to its end yet."""
CHARTS_PERIOD, LONGEST_CHARTS_PERIOD = 2.0, 15.0
CHARTS_SHARE = 0.01
"""The share of a core that drawing may take: what costs more is drawn less often."""
KEEP_ALIVE = 15.0
MOST_WAITING = 16
"""The events that wait for a page; a page that leaves more unread is dropped."""
MOST_PAGES = 64


@dataclass(frozen=True)
class Look:
    """What one look has found: the state to show, whether there is more to draw, and what next."""

    state: Any
    changed: bool = False
    extra: tuple[tuple[str, Any], ...] = ()
    """Other events to send, each with its name."""
    wait: float = PERIOD
    spent: float = 0.0
    """Seconds of processor time that answers about it have taken so far."""


class ReadingThread:
    """The thread that reads files, for coroutines."""

    def __init__(self) -> None:
        self._thread = BackgroundThread("phalanx-watch")
        self._used = False

    async def ask(self, function: Callable[..., T], *given: Any) -> T:
        self._used = True
        found: T = await asyncio.wrap_future(self._thread.submit(function, *given))
        return found

    def give(self, function: Callable[..., Any], *given: Any) -> None:
        """Have ``function`` called, by any thread that need not know what came of it."""
        self._thread.submit(function, *given)

    def close(self, last: Callable[[], Any], seconds: float) -> None:
        """End the thread, after ``last`` if it has done anything; wait for that a little."""
        if self._used:
            self._thread.submit(last)
        self._thread.close(seconds)


class Page:
    """One open page: the events that it has not been sent yet."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_WAITING)
        self.task: asyncio.Task[Any] | None = None

    def tell(self, event: bytes) -> None:
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            if self.task is not None:  # it waits for a socket that is not read
                self.task.cancel()

    def end(self) -> None:
        while not self.events.empty():
            self.events.get_nowait()
        self.events.put_nowait(None)


class Subject:
    """A run, or the list of runs, and the pages that watch it."""

    def __init__(self, thread: ReadingThread, look: Callable[[], Look]) -> None:
        self._thread, self._look = thread, look
        self.pages: set[Page] = set()
        self._state = b""
        self._task: asyncio.Task[None] | None = None

    def join(self, page: Page) -> None:
        if self._state:
            page.tell(self._state)
        self.pages.add(page)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    def leave(self, page: Page) -> None:
        self.pages.discard(page)
        if not self.pages and self._task is not None:
            self._task.cancel()

    def _tell(self, event: bytes) -> None:
        for page in list(self.pages):
            page.tell(event)

    async def _watch(self) -> None:
        told = spent = 0.0
        waiting = False
        while self.pages:
            try:
                look = await self._thread.ask(self._look)
            except Exception:  # the folder is gone, or is half removed: the page asks again
                self.end()
                return
            now = time.monotonic()
            state = event("state", look.state)
            if state != self._state:
                self._state = state
                self._tell(state)
            waiting = waiting or look.changed
            cost = (look.spent - spent) / CHARTS_SHARE
            if waiting and now - told >= min(max(CHARTS_PERIOD, cost), LONGEST_CHARTS_PERIOD):
                told, spent = now, look.spent
                waiting = False
                self._tell(event("charts", {"changed": True}))
            for name, value in look.extra:
                self._tell(event(name, value))
            await asyncio.sleep(look.wait)

    def end(self) -> None:
        for page in self.pages:
            page.end()


class OpenPages:
    """Everything that is watched at present."""

    def __init__(self, thread: ReadingThread) -> None:
        self._thread = thread
        self._subjects: dict[str, Subject] = {}
        self._ended = False

    @property
    def pages(self) -> int:
        return sum(len(subject.pages) for subject in self._subjects.values())

    def has_room(self) -> bool:
        return not self._ended and self.pages < MOST_PAGES

    def subject(self, name: str, look: Callable[[], Look]) -> Subject:
        unwatched = [key for key, known in self._subjects.items() if not known.pages]
        for key in unwatched:
            del self._subjects[key]
        return self._subjects.setdefault(name, Subject(self._thread, look))

    def end(self) -> None:
        """Let all pages go; they connect again when there is a server."""
        self._ended = True
        for subject in self._subjects.values():
            subject.end()


class EventStream(Response):
    """The answer to a page that watches: server-sent events, until the page or the server ends."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._subject = subject

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        if scope["method"] != "HEAD":
            page = Page()
            page.task = asyncio.current_task()
            leaving = asyncio.create_task(_until_gone(receive, page))
            self._subject.join(page)
            try:
                await _send_events(page, send)
            finally:
                self._subject.leave(page)
                leaving.cancel()
        await send({"type": "http.response.body", "body": b""})


async def _send_events(page: Page, send: Send) -> None:
    while True:
        text: bytes | None = b": keep-alive\n\n"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEEP_ALIVE):
                text = await page.events.get()
        if text is None:
            return
        await send({"type": "http.response.body", "body": text, "more_body": True})


async def _until_gone(receive: Receive, page: Page) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    page.end()


def event(name: str, value: Any) -> bytes:
    """Return one server-sent event; JSON has no line end in it."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"
