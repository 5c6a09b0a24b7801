"""Connections to the coordinator that have not said yet which process they are of."""

from __future__ import annotations

import selectors
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from phalanx.core.errors import PeerLost
from phalanx.sync.arena.remote import coordinator_messages as m
from phalanx.sync.arena.remote.coordinator_state import Client
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.connect.listener import Listener

UNHEARD = 64  # channels that may be open before they have said hello


class Arrivals:
    """Registers them in ``selector``, without data until they are clients."""

    def __init__(
        self, listener: Listener, selector: selectors.BaseSelector, processes: int
    ) -> None:
        self._listener, self._selector, self._processes = listener, selector, processes
        self._unheard: list[Channel] = []

    def accept(self) -> None:
        channel = self._listener.accept(0)
        if channel is None:
            return
        if len(self._unheard) >= UNHEARD + self._processes:
            self._drop(self._unheard[0])
        self._unheard.append(channel)
        self._selector.register(channel, selectors.EVENT_READ)

    def hear(
        self, channel: Channel, present: Mapping[int, Client], lost: Sequence[m.Lost]
    ) -> Client | None:
        """The process that ``channel`` introduces, unless it is a wrong one, or one is ``lost``
        already, so that there will never be all of them."""
        try:
            header, size = channel.receive()
            hello = m.request_decoder.decode(header)
        except (PeerLost, msgspec.MsgspecError):
            self._drop(channel)
            return None
        if not isinstance(hello, m.Hello) or not self._fits(hello, channel, size, present):
            self._drop(channel)
            return None
        if lost:
            with suppress(PeerLost):
                channel.send(m.encode(lost[0]))
            self._drop(channel)
            return None
        channel.peer = f"{hello.machine} ({hello.address})"
        self._unheard.remove(channel)
        client = Client(channel, hello)
        self._selector.modify(channel, selectors.EVENT_READ, client)
        return client

    def _fits(
        self, hello: m.Hello, channel: Channel, size: int, present: Mapping[int, Client]
    ) -> bool:
        known = channel.introduction == Introduction(m.COORDINATOR, hello.process)
        new = known and hello.process not in present
        return new and size == 0 and hello.processes == self._processes

    def close(self) -> None:
        for channel in self._unheard:
            channel.close()

    def _drop(self, channel: Channel) -> None:
        if channel not in self._unheard:
            return
        self._unheard.remove(channel)
        self._selector.unregister(channel)
        channel.close()
