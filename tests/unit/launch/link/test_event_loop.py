from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from phalanx.core.errors import RunStopped
from phalanx.launch.launcher import never
from phalanx.launch.link.event_loop import EventLoop, in_thread


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    one = EventLoop()
    yield one
    one.close()


def test_waiting_ends_when_asked_and_when_late(loop: EventLoop) -> None:
    with pytest.raises(RunStopped):
        loop.wait(asyncio.sleep(300), lambda: True)
    with pytest.raises(TimeoutError):
        loop.wait(asyncio.sleep(300), never, 0.1)


def test_nobody_waits_for_a_thread_that_was_given_up(loop: EventLoop) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(30.0)

    with pytest.raises(RunStopped):
        loop.wait(in_thread(work), begun.is_set)
    loop.close()
    go_on.set()
