"""What open pages are told: one reading for all, none without a page, a quick end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_runs import write_run
from watch_client import Events, served

from phalanx.watch.feed.pool_view import PoolFeed
from phalanx.watch.feed.run_feed import RunFeed
from phalanx.watch.library import Library, Look

RUN = "20250102-000000-made"
STREAM = f"/api/run/{RUN}/stream"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_run(tmp_path, RUN)
    return tmp_path


def test_a_page_hears_the_state_and_of_more_to_draw(home: Path) -> None:
    with served(home) as site:
        page = Events(site.client, STREAM)
        assert page.response.headers["content-type"].startswith("text/event-stream")
        assert page.next("state")["id"] == RUN
        assert page.next("charts") == {"changed": True}
        page.close()


def test_all_pages_share_one_reading(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds: list[RunFeed] = []
    made = RunFeed.__init__

    def counted(self: RunFeed, *given: Any) -> None:
        feeds.append(self)
        made(self, *given)

    monkeypatch.setattr(RunFeed, "__init__", counted)
    with served(home) as site:
        pages = [Events(site.client, STREAM) for _ in range(3)]
        assert [page.next("state")["id"] for page in pages] == [RUN] * 3
        assert site.client(f"/api/run/{RUN}/charts").status == 200
        assert len(feeds) == 1
        for page in pages:
            page.close()


def test_nothing_is_read_before_a_page_asks(home: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    with served(home, enter=False) as site:
        site.client("/")
        names = [thread.name for thread in threading.enumerate()]
        assert "phalanx-watch" not in names
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_the_server_ends_while_pages_are_open(home: Path) -> None:
    with served(home) as site:
        pages = [Events(site.client, path) for path in (STREAM, STREAM, "/api/stream")]
        for page in pages:
            page.next("state")
    for page in pages:
        assert page.next("no such event") is None, "the stream has an end"
        page.close()
    assert "phalanx-watch-server" not in [thread.name for thread in threading.enumerate()]


def test_machines_of_a_pool_are_announced(home: Path) -> None:
    with served(home, PoolFeed()) as site:
        site.server.library.take("silent", None)
        page = Events(site.client, "/api/stream")
        assert [run["id"] for run in page.next("state")["runs"]] == [RUN]
        assert page.next("pool") == {"changed": True}
        shown = site.client("/api/pool").json["machines"]
        assert [(one["name"], one["state"]) for one in shown] == [("silent", "unreachable")]
        page.close()
    with served(home) as site:
        assert site.client("/api/pool").status == 404


def test_only_so_many_pages_may_watch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.watch.server.MOST_CONNECTIONS", 8)
    with served(home) as site:
        pages = [Events(site.client, STREAM) for _ in range(4)]
        answers = []
        for _ in range(4):
            with contextlib.suppress(AssertionError):
                pages.append(Events(site.client, STREAM))
            answers.append(site.client("/api/runs").status)
        assert answers[-1] == 503
        for page in pages:
            page.close()


def test_looking_stops_with_the_page() -> None:
    async def story() -> None:
        looks, events = watched({"n": 1})
        assert b'{"n":1}' in await anext(events)
        await events.aclose()
        seen = len(looks)
        await asyncio.sleep(0.05)
        assert len(looks) == seen

    asyncio.run(story())


def test_an_unchanged_state_is_sent_once_and_the_end_is_heard() -> None:
    async def story() -> None:
        library = Library(Path())
        looks, events = watched({"n": 1}, library)
        await anext(events)
        following = asyncio.ensure_future(anext(events, None))
        while len(looks) < 5:
            await asyncio.sleep(0.005)
        assert not following.done()
        library.ended.set()
        assert await following is None

    asyncio.run(story())


def test_a_page_is_told_that_there_is_more_to_draw_as_often_as_it_costs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFeed, "refresh", lambda feed: True)
    times = Clock()
    monkeypatch.setattr("phalanx.watch.library.time", times)
    library = Library(home)
    told = []
    for second in range(30):
        times.now = float(second)
        times.cost = 0.1 if second >= 10 else 0.0
        told.append(library.look_at_run(RUN).number)
        library.answer(RUN, "charts", times.draw)
    assert told[:6] == [1, 1, 2, 2, 3, 3]
    assert told[29] - told[12] == 1, "each drawing takes a tenth of a second"


def test_a_run_that_cannot_be_read_ends_the_stream() -> None:
    def fails() -> Look:
        raise OSError

    async def story() -> None:
        assert [each async for each in Library(Path()).events(fails)] == []

    asyncio.run(story())


def watched(
    state: Any, library: Library | None = None
) -> tuple[list[str], AsyncGenerator[bytes, None]]:
    looks: list[str] = []

    def look() -> Look:
        looks.append("look")
        return Look(msgspec.json.encode(state), "charts", 0, 0.005)

    return looks, (library or Library(Path())).events(look)


class Clock:
    """Stands in for the module ``time``; drawing takes what ``cost`` says."""

    def __init__(self) -> None:
        self.now = self.processor = self.cost = 0.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.processor

    def draw(self, feed: RunFeed) -> str:
        self.processor += self.cost
        return ""
