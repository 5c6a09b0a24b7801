"""A worker's connections to the servers of the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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


class ServerConnection:
    """One connection, with one request at a time: ``begin``, ``send``, ``receive``, ``end``.

    ``versions`` has, for each server, the version of the host's copy of its parameters; all workers
    of the host share it.
    """

    def __init__(self, channel: Channel, lock: Lock, versions: Tensor, index: int) -> None:
        self.channel, self._lock = channel, lock
        self._versions, self._index = versions.numpy(), index
        self._held = False
        self.seen = 0
        """The version of the copy before the last answer, with which the gradient was computed."""
        self.sent = 0
        """Bytes that were sent, with headers."""

    @property
    def version(self) -> int:
        """The version of the host's copy of the parameters; -1 if there is none yet."""
        return int(self._versions[self._index])

    def saw(self, version: int, renewed: bool) -> None:
        """Note that the server is at ``version``; so is the copy, if it was ``renewed``."""
        self.seen = version if self.version < 0 else self.version
        if renewed:
            self._versions[self._index] = version

    def begin(self) -> None:
        self._lock.acquire()
        self._held = True

    def send(self, request: m.Request, buffers: Sequence[Tensor] = ()) -> None:
        header, views = m.pack(request), [byte_view(tensor) for tensor in buffers]
        self.sent += PREFIX + len(header) + sum(map(len, views))
        self.channel.send(header, *views)

    def receive(self, into: Sequence[Tensor] = ()) -> m.Answer:
        """Receive the answer, and the tensors that follow it into ``into``."""
        header, size = self.channel.receive()
        answer = m.read_answer(header)
        if size:
            views = [byte_view(tensor) for tensor in into]
            if size != sum(map(len, views)):
                raise self.channel.lost(f"it sent {size} bytes where another number was expected")
            self.channel.receive_into(*views)
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
    """A worker's connections to all servers; ``layouts`` have a shard for ``each``, in order."""

    def __init__(
        self,
        each: Sequence[ServerConnection],
        layouts: Sequence[Layout],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """``look`` raises an error if it is known which process is lost."""
        self.each, self._layouts, self._look = each, layouts, look

    @property
    def sent(self) -> int:
        return sum(connection.sent for connection in self.each)

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
    def requests(self) -> Iterator[None]:
        """Release the locks of all requests at the end, whatever happens."""
        try:
            yield
        except MachineLost:
            time.sleep(LOOK_SECONDS)  # its machine's worker may have been lost first
            self._look()
            raise
        finally:
            for connection in self.each:
                connection.end()

    def take(self, server: int, into: Sequence[Tensor]) -> m.StoreDone:
        """Receive ``server``'s answer, and parameters if ``into`` is given; free the connection."""
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
