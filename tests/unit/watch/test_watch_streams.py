"""What open pages are told: one reading for all, none without a page, short queues, a quick end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from made_runs import write_run
from watch_client import Events, served

from phalanx.watch.feed.pool_view import PoolFeed
from phalanx.watch.feed.run_feed import RunFeed
from phalanx.watch.streams import MOST_PAGES, MOST_WAITING, Look, Page, ReadingThread, Subject

RUN = "20250102-000000-made"
STREAM = f"/api/run/{RUN}/stream"
LONG = 60.0


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
        site.server.take("silent", None)
        page = Events(site.client, "/api/stream")
        assert [run["id"] for run in page.next("state")["runs"]] == [RUN]
        assert page.next("pool") == {"changed": True}
        shown = site.client("/api/pool").json["machines"]
        assert [(one["name"], one["state"]) for one in shown] == [("silent", "unreachable")]
        page.close()
    with served(home) as site:
        assert site.client("/api/pool").status == 404


def test_only_so_many_pages_may_watch(home: Path) -> None:
    with served(home) as site:
        pages = [Events(site.client, STREAM) for _ in range(MOST_PAGES)]
        pages[-1].next("state")
        assert site.client(STREAM).status == 503
        for page in pages:
            page.close()


def watched(look: Look) -> tuple[Subject, list[str]]:
    looks: list[str] = []

    def found() -> Look:
        looks.append("look")
        return look

    return Subject(ReadingThread(), found), looks


def test_a_page_that_does_not_read_is_dropped() -> None:
    async def story() -> None:
        page = Page()
        page.task = asyncio.create_task(asyncio.sleep(LONG))  # it waits for its socket
        for number in range(MOST_WAITING):
            page.tell(b"%d" % number)
        await asyncio.sleep(0)
        assert not page.task.cancelling()
        page.tell(b"one more")
        with pytest.raises(asyncio.CancelledError):
            await page.task
        assert page.events.qsize() == MOST_WAITING

    asyncio.run(story())


def test_looking_stops_with_the_last_page() -> None:
    async def story() -> None:
        subject, looks = watched(Look({"n": 1}, wait=0.0))
        first, second = Page(), Page()
        subject.join(first)
        subject.join(second)
        assert b'{"n":1}' in (await first.events.get() or b"")
        subject.leave(first)
        subject.leave(second)
        await asyncio.sleep(0.01)
        seen = len(looks)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert len(looks) == seen

    asyncio.run(story())


def test_an_unchanged_state_is_sent_once_and_a_late_page_has_it() -> None:
    async def story() -> None:
        subject, looks = watched(Look({"n": 1}, wait=0.0))
        page, late = Page(), Page()
        subject.join(page)
        while len(looks) < 5:
            await asyncio.sleep(0.005)
        assert page.events.qsize() == 1
        subject.join(late)
        assert late.events.get_nowait() == page.events.get_nowait()
        subject.end()
        assert (await page.events.get(), await late.events.get()) == (None, None)

    asyncio.run(story())


def test_a_run_that_cannot_be_read_ends_the_stream_and_no_more() -> None:
    def fails() -> Look:
        raise OSError

    async def story() -> None:
        page = Page()
        Subject(ReadingThread(), fails).join(page)
        async with asyncio.timeout(LONG):
            assert await page.events.get() is None

    asyncio.run(story())
