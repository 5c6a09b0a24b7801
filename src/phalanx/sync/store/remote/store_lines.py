"""A worker's ends of the connections to all servers of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from phalanx.core.errors import PeerLost
from phalanx.sync.state.layout import Layout
from phalanx.sync.store.remote.store_line import ServerConnection, Traffic
from phalanx.sync.store.remote.store_messages import Answer, Request, StoreDone


class ServerConnections:
    """``layouts`` have one shard per server, in the order of ``each`` line."""

    def __init__(self, each: Sequence[ServerConnection], layouts: Sequence[Layout]) -> None:
        self.each, self._layouts = each, layouts
        self.traffic = Traffic()

    def ask(
        self,
        request: Callable[[int], Request],
        into: Callable[[int], Sequence[Tensor]] = lambda server: (),
    ) -> list[Answer]:
        with self.requests():
            for server, line in enumerate(self.each):
                line.begin()
                line.send(request(server))
            return [line.receive(into(server)) for server, line in enumerate(self.each)]

    @contextmanager
    def requests(self) -> Iterator[Traffic]:
        """Whatever happens, the locks are given back; what was sent and received is summed up."""
        traffic = Traffic()
        try:
            yield traffic
        finally:
            for line in self.each:
                line.end()
                traffic += line.take_traffic()
            self.traffic += traffic

    def take(self, server: int, into: Sequence[Tensor]) -> StoreDone:
        """The answer of ``server``, with its parameters if it sent them. Frees the line."""
        line = self.each[server]
        slices = [flat[self.range_of(i, server)] for i, flat in enumerate(into)]
        told = done(line.receive(slices))
        line.saw(told.version, renewed=bool(into))
        line.end()
        return told

    def range_of(self, layout: int, server: int) -> slice:
        return slice(*self._layouts[layout].bounds(server))


def done(answer: Answer) -> StoreDone:
    if not isinstance(answer, StoreDone):
        raise PeerLost("a parameter server answered another question than was asked")
    return answer
