"""Hands accepted channels to the code that expects that participant.

A process has one listener and may open several groups of links over it (all workers, its team),
each with its own tag. Channels arrive in any order, so those for other groups are kept, for a
limited time and in a limited number.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from phalanx.core.errors import MachineLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.connect.listener import Listener

MAX_WAITING = 256
KEPT_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class Dispatcher:
    """Accepts channels from ``listener``; several threads may ask it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._door = threading.Lock()
        self._guard = threading.Lock()
        self._waiting: dict[Introduction, tuple[Channel, float]] = {}

    def expect(self, caller: Introduction, deadline: float, name: str) -> Channel:
        """Return the channel of the caller with this introduction; wait until ``deadline``."""
        while True:
            if (channel := self._take(caller)) is not None:
                return channel
            if time.monotonic() >= deadline:
                raise MachineLost(
                    f"{name} did not connect in time",
                    "See its log: it may have failed, or cannot reach this address.",
                )
            self._accept_one()

    def close(self) -> None:
        """Drop the channels that still wait. The listener remains its owner's."""
        with self._guard:
            waiting, self._waiting = self._waiting, {}
        for channel, _ in waiting.values():
            channel.close()

    def _take(self, caller: Introduction) -> Channel | None:
        with self._guard:
            found = self._waiting.pop(caller, None)
        return found[0] if found else None

    def _accept_one(self) -> None:
        """Accept one channel, if one comes soon. Only one thread waits for it at a time."""
        if not self._door.acquire(timeout=_LOOK_SECONDS):
            return
        try:
            channel = self._listener.accept(timeout=_LOOK_SECONDS)
        finally:
            self._door.release()
        if channel is not None:
            self._keep(channel.introduction, channel)

    def _keep(self, caller: Introduction, channel: Channel) -> None:
        """Keep a call. A second call replaces the first; one that waits too long is closed."""
        now = time.monotonic()
        with self._guard:
            dropped = [self._waiting.pop(caller, None)]
            for other, (_, since) in list(self._waiting.items()):
                if now - since > KEPT_SECONDS or len(self._waiting) >= MAX_WAITING:
                    dropped.append(self._waiting.pop(other))
            self._waiting[caller] = (channel, now)
        for gone in filter(None, dropped):
            gone[0].close()


@dataclass(frozen=True)
class Credentials:
    """What a process needs to reach the others and to be reached: key, address, dispatcher."""

    key: RunKey
    address: str
    """The address of this machine on which it listens and from which it connects."""
    dispatcher: Dispatcher
    tls: bool = False
