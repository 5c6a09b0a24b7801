"""What the home remembers: its clients, the locks, and what was written, in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from phalanx.sync.arena.remote import coordinator_messages as m
from phalanx.sync.connect.channel import Channel


@dataclass(eq=False)
class Client:
    """A process, as the home knows it."""

    channel: Channel
    hello: m.Hello
    rank: int = -1
    seen: int = 0
    """Changes up to this one are known there."""
    awaiting: int | None = None
    """The number of the request that waits to be woken."""

    @property
    def member(self) -> m.Member:
        hello = self.hello
        return m.Member(self.rank, hello.machine, hello.address, hello.port, hello.host)

    def lost(self, ending: m.Ending, because: str = "") -> m.Lost:
        """How others are told that it is gone."""
        hello = self.hello
        return m.Lost(self.rank, hello.machine, hello.address, hello.serves, ending, because)

    def answer(self, reply: m.Reply, *changes: bytes) -> None:
        self.channel.send(m.encode(reply), *changes)


@dataclass
class Held:
    """A lock: who has it, and who wants it."""

    holder: Client | None = None
    waiting: deque[tuple[Client, m.Acquire]] = field(default_factory=deque)


@dataclass(frozen=True)
class Change:
    source: Client
    runs: int
    places: bytes
    values: bytes


class Changes:
    """What was written, in the order in which it was released."""

    def __init__(self) -> None:
        self._log: deque[Change] = deque()
        self._first = 0

    @property
    def end(self) -> int:
        return self._first + len(self._log)

    def add(self, change: Change) -> None:
        self._log.append(change)

    def news_for(self, client: Client) -> tuple[int, bytes, bytes]:
        """(runs, places, values) of what others wrote since ``client`` last heard of it."""
        found = [
            change
            for change in list(self._log)[client.seen - self._first :]
            if change.source is not client
        ]
        client.seen = self.end
        return (
            sum(change.runs for change in found),
            b"".join(change.places for change in found),
            b"".join(change.values for change in found),
        )

    @property
    def many(self) -> bool:
        return len(self._log) > 64

    def forget(self, seen: int) -> None:
        """Everybody knows what came before ``seen``."""
        while self._first < seen and self._log:
            self._log.popleft()
            self._first += 1
