"""The thread that moves bytes: woken whenever there is something, and gone when it is closed."""

from __future__ import annotations

import threading

from phalanx.core.errors import PeerLost
from phalanx.sync.collective.algorithms.ahead import SenderThread

SOON = 10.0


class SetAgain(threading.Event):
    """Its owner rests and begins again just when the thread looks for the first time."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks > 1 and super().is_set()


def test_who_begins_again_while_the_thread_looks_is_heard() -> None:
    moved = threading.Event()

    def move() -> bool:
        moved.set()
        return False

    sender = SenderThread(move)
    sender._wanted = SetAgain()
    sender.begin()
    try:
        assert moved.wait(SOON)
    finally:
        sender.close()


def test_a_lost_peer_ends_the_moving_and_not_the_thread() -> None:
    lost, again = threading.Event(), threading.Event()

    def move() -> bool:
        if lost.is_set():
            again.set()
            return False
        lost.set()
        raise PeerLost("it is gone", "")

    sender = SenderThread(move)
    sender.begin()
    assert lost.wait(SOON)
    with sender.lock:  # the thread has heard of it
        pass
    sender.begin()
    try:
        assert again.wait(SOON)
    finally:
        sender.close()
