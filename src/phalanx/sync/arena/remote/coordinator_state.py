"""The coordinator's state: its clients, locks and values, and the changes of memory in order."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from phalanx.sync.arena.remote import coordinator_messages as m
from phalanx.sync.connect.channel import Channel


@dataclass(eq=False)
class Client:
    """What the coordinator knows of one process."""

    channel: Channel
    hello: m.Hello
    rank: int = -1
    seen: int = 0
    """The number of the newest change that the client has."""
    awaiting: int | None = None
    """The number of the client's open ``Await``, if there is one."""

    @property
    def member(self) -> m.TrainingMember:
        hello = self.hello
        return m.TrainingMember(self.rank, hello.machine, hello.address, hello.port, hello.host)

    def lost(self, ending: m.Ending, words: str = "") -> m.Lost:
        """Make the message that tells the other clients that this one is gone."""
        hello = self.hello
        return m.Lost(self.rank, hello.machine, hello.address, hello.serves, ending, words)

    def answer(self, reply: m.Reply, *changes: bytes) -> None:
        self.channel.send(m.encode(reply), *changes)


@dataclass
class _Lock:
    holder: Client | None = None
    waiting: deque[tuple[Client, int]] = field(default_factory=deque)


class LockTable:
    """Locks, each with its holder and the clients that wait for it, by request number."""

    def __init__(self) -> None:
        self._locks: defaultdict[int, _Lock] = defaultdict(_Lock)

    def acquire(self, client: Client, request: m.Acquire) -> bool | None:
        """Return whether the lock is granted; ``None`` if the client has to wait for it."""
        lock = self._locks[request.lock]
        if lock.holder is None:
            lock.holder = client
            return True
        if request.blocking:
            lock.waiting.append((client, request.seq))
            return None
        return False

    def release(self, client: Client, index: int) -> list[tuple[Client, int]]:
        """Release a lock; return its next holder, if any, with the number of the request."""
        lock = self._locks[index]
        if lock.holder is not client:
            return []
        following = lock.waiting.popleft() if lock.waiting else None
        lock.holder = following[0] if following else None
        return [following] if following else []

    def forget(self, client: Client) -> list[tuple[Client, int]]:
        """Remove a client from all queues; return the next holders of its locks."""
        for lock in self._locks.values():
            lock.waiting = deque(w for w in lock.waiting if w[0] is not client)
        return [found for index in self._locks for found in self.release(client, index)]


@dataclass
class KeyValues:
    """Values by name, and the clients that wait for each."""

    known: dict[str, bytes] = field(default_factory=dict)
    _wanted: dict[str, list[tuple[Client, int]]] = field(default_factory=dict)

    def put(self, key: str, value: bytes) -> list[tuple[Client, int]]:
        """Store a value; return the clients that waited for it, with their request numbers."""
        self.known[key] = value
        return self._wanted.pop(key, [])

    def want(self, key: str, client: Client, seq: int) -> None:
        self._wanted.setdefault(key, []).append((client, seq))

    def forget(self, client: Client) -> None:
        for wanted in self._wanted.values():
            wanted[:] = [w for w in wanted if w[0] is not client]


@dataclass(frozen=True)
class MemoryChange:
    source: Client
    runs: int
    places: bytes
    values: bytes


class MemoryChanges:
    """The changes of memory, in the order in which they were released."""

    def __init__(self) -> None:
        self._log: deque[MemoryChange] = deque()
        self._first = 0

    @property
    def end(self) -> int:
        return self._first + len(self._log)

    def add(self, change: MemoryChange) -> None:
        self._log.append(change)

    def news_for(self, client: Client) -> tuple[int, bytes, bytes]:
        """Return (runs, places, values) of the others' changes that ``client`` does not have."""
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
        """Drop changes before ``seen``, which all clients have."""
        while self._first < seen and self._log:
            self._log.popleft()
            self._first += 1
