"""A worker's ends of the connections to the servers of the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.core.errors import InputError, MachineLost, PeerLost
from phalanx.sync.arena.arena import Lock
from phalanx.sync.connect.channel import Channel
from phalanx.sync.state.layout import Layout
from phalanx.sync.store.remote import store_messages as m
from phalanx.sync.store.remote.store_shard import byte_view

LOOK_SECONDS = 0.2
PREFIX = 12
"""Bytes of a frame before its header."""


@dataclass
class Traffic:
    """Bytes, with headers."""

    sent: int = 0
    received: int = 0

    def __iadd__(self, other: Traffic) -> Traffic:
        self.sent += other.sent
        self.received += other.received
        return self


@dataclass(frozen=True)
class HostMemory:
    """What the workers of a host share about their connections, an element per server.

    ``versions`` (int64) of the host's copy of the parameters; ``midway`` (uint8) is set while a
    request is under way, so that one whose worker died is not taken for the next one's: it
    belongs to the connection, and is the same for all stores that use it.
    """

    versions: Tensor
    midway: Tensor

    @staticmethod
    def private(servers: int) -> HostMemory:
        """Memory for a worker that has its connections for itself."""
        return HostMemory(torch.full((servers,), -1), torch.zeros(servers, dtype=torch.uint8))


class ServerConnection:
    """One request at a time: ``begin``, ``send``, ``receive``, ``end``."""

    def __init__(self, channel: Channel, lock: Lock, memory: HostMemory, index: int) -> None:
        self.channel, self._lock = channel, lock
        self._versions, self._midway = memory.versions.numpy(), memory.midway.numpy()
        self._index = index
        self._held = False
        self.seen = 0
        """The version of the copy at the last request: what its gradient was computed with."""
        self._traffic = Traffic()

    @property
    def version(self) -> int:
        """The version of the copy of the parameters; -1 if there is none yet."""
        return int(self._versions[self._index])

    def saw(self, version: int, renewed: bool) -> None:
        """The server is at ``version``; so is the copy, if it was ``renewed``."""
        self.seen = version if self.version < 0 else self.version
        if renewed:
            self._versions[self._index] = version

    def take_traffic(self) -> Traffic:
        """Return the traffic since the last call."""
        traffic, self._traffic = self._traffic, Traffic()
        return traffic

    def begin(self) -> None:
        self._lock.acquire()
        self._held = True
        if self._midway[self._index]:
            raise PeerLost(
                f"a worker of this machine was lost in the middle of a message to "
                f"{self.channel.peer}",
                "See its log.",
            )

    def send(self, request: m.Request, buffers: Sequence[Tensor] = ()) -> None:
        self._midway[self._index] = 1
        header, views = m.pack(request), [byte_view(tensor) for tensor in buffers]
        self._traffic.sent += PREFIX + len(header) + sum(map(len, views))
        self.channel.send(header, *views)

    def receive(self, into: Sequence[Tensor] = ()) -> m.Answer:
        """The answer; what follows it fills ``into`` or is nothing. The server is idle then."""
        header, size = self.channel.receive()
        self._traffic.received += PREFIX + len(header) + size
        answer = m.read_answer(header)
        if size:
            views = [byte_view(tensor) for tensor in into]
            if size != sum(map(len, views)):
                raise self.channel.lost(f"it sent {size} bytes where others were expected")
            self.channel.receive_into(*views)
        self._midway[self._index] = 0
        if isinstance(answer, m.Failed):
            raise self._error(answer)
        return answer

    def _error(self, answer: m.Failed) -> Exception:
        if answer.lost:
            return MachineLost(answer.cause, answer.remedy)
        return InputError(f"{self.channel.peer} refuses: {answer.cause}", answer.remedy)

    def end(self) -> None:
        if self._held:
            self._held = False
            self._lock.release()


class ServerConnections:
    """``layouts`` have one shard per server, in the order of ``each`` connection."""

    def __init__(
        self,
        each: Sequence[ServerConnection],
        layouts: Sequence[Layout],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """``look`` raises if it is known who is gone."""
        self.each, self._layouts, self._look = each, layouts, look
        self.traffic = Traffic()

    def ask(
        self,
        request: Callable[[int], m.Request],
        into: Callable[[int], Sequence[Tensor]] = lambda server: (),
    ) -> list[m.Answer]:
        with self.requests():
            for server, connection in enumerate(self.each):
                connection.begin()
                connection.send(request(server))
            return [connection.receive(into(server)) for server, connection in enumerate(self.each)]

    @contextmanager
    def requests(self) -> Iterator[Traffic]:
        """Holds the locks for a request and gives them back, whatever happens; counts bytes."""
        traffic = Traffic()
        try:
            yield traffic
        except MachineLost:
            time.sleep(LOOK_SECONDS)  # a server ends with its machine's worker: who was first?
            self._look()
            raise
        finally:
            for connection in self.each:
                connection.end()
                traffic += connection.take_traffic()
            self.traffic += traffic

    def take(self, server: int, into: Sequence[Tensor]) -> m.StoreDone:
        """The answer of ``server``, with its parameters if it sent them. Frees the connection."""
        connection = self.each[server]
        slices = [flat[self.range_of(i, server)] for i, flat in enumerate(into)]
        answer = done(connection.receive(slices))
        connection.saw(answer.version, renewed=bool(into))
        connection.end()
        return answer

    def range_of(self, layout: int, server: int) -> slice:
        return slice(*self._layouts[layout].bounds(server))


def done(answer: m.Answer) -> m.StoreDone:
    if not isinstance(answer, m.StoreDone):
        raise PeerLost("a parameter server sent the wrong answer")
    return answer
