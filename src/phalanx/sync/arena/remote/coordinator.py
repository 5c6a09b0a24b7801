"""Coordinates a training on several machines: who is there, who waits for whom, what is new.

Each worker keeps a copy of control memory (clocks, claims, intents). It sends its changes to the
coordinator when it releases something (a barrier, a lock, a wake), and a worker that acquires
something receives all changes that are new to it. That is the release consistency of Keleher, Cox
and Zwaenepoel, "Lazy release consistency for software distributed shared memory" (1992), with
releases put in order by the coordinator. The coordinator does not interpret the memory: it forwards
changes and counts arrivals. It imports no torch, so it starts at once.
"""

from __future__ import annotations

import secrets
import selectors
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from phalanx.core.errors import PeerLost
from phalanx.sync.arena.remote import coordinator_messages as m
from phalanx.sync.arena.remote.coordinator_state import (
    Client,
    KeyValues,
    LockTable,
    MemoryChange,
    MemoryChanges,
)
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.connect.listener import Listener

UNHEARD = 64  # channels that may be open without a hello, besides one per process


class Arrivals:
    """Accepts new channels and keeps them in ``selector``, without data, until they are clients."""

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
        """Return the client at the other end of ``channel``; close the channel and return ``None``
        if its hello is wrong, or if a process is ``lost`` already."""
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


LOOK_SECONDS = 0.5


class Coordinator:
    """Serves ``processes`` processes, until all workers have said good-bye or are lost."""

    def __init__(self, listener: Listener, processes: int) -> None:
        self._listener, self._processes = listener, processes
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._arrivals = Arrivals(listener, self._selector, processes)
        self._present: dict[int, Client] = {}
        self._clients: list[Client] = []
        self._ended: list[m.Lost] = []
        self._never: list[m.Lost] = []
        """Processes that were lost before all had arrived."""
        self._workers: dict[int, Client] = {}
        self._changes = MemoryChanges()
        self._meetings: defaultdict[tuple[int, ...], list[tuple[Client, m.Meet]]] = defaultdict(
            list
        )
        self._locks = LockTable()
        self._values = KeyValues()
        self._handlers: dict[type, Callable[..., None]] = {
            m.Meet: self._meet,
            m.Acquire: self._acquire,
            m.Release: self._release,
            m.Await: self._await,
            m.Wake: self._wake,
            m.Peek: self._peek,
            m.Put: self._put,
            m.Get: self._get,
        }
        self._run = secrets.token_hex(8)
        self._over = False

    # -- the loop ----------------------------------------------------------------------------

    def serve(self, going_on: Callable[[], bool] = lambda: True) -> None:
        looked = time.monotonic()
        while not self._over and going_on():
            if time.monotonic() - looked > 2 * LOOK_SECONDS:
                looked = time.monotonic()
                # A cut link reports no error, but the kernel knows what is not acknowledged.
                for client in list(self._clients):
                    try:
                        client.channel.look()
                    except PeerLost:
                        self._lose(client)
            for key, _ in self._selector.select(LOOK_SECONDS):
                if key.fileobj is self._listener:
                    self._arrivals.accept()
                elif key.data is None:
                    self._first_word(key.fileobj)  # type: ignore[arg-type]
                else:
                    self._hear(key.data)
        self._arrivals.close()
        for client in self._clients:
            client.channel.close()
        self._selector.close()
        self._listener.close()

    def _first_word(self, channel: Channel) -> None:
        client = self._arrivals.hear(channel, self._present, self._never)
        if client is None:
            return
        self._present[client.hello.process] = client
        self._clients.append(client)
        if len(self._present) == self._processes:
            self._welcome()

    def _hear(self, client: Client) -> None:
        try:
            header, size = client.channel.receive()
            request = m.request_decoder.decode(header)
            if isinstance(request, m.Bye):
                if request.ending is m.Ending.FINISHED:
                    if not client.hello.serves:
                        self._ended.append(client.lost(m.Ending.FINISHED))
                    self._forget_client(client)
                    self._settle_without()
                else:
                    self._lose(client, request.ending, request.words)
                return
            if isinstance(request, m.Hello):
                raise ValueError("a process says hello once")
            self._take_changes(client, request.runs, size)
            self._handlers[type(request)](client, request)
        except (PeerLost, msgspec.MsgspecError, KeyError, ValueError):
            self._lose(client)

    def _take_changes(self, client: Client, runs: int, size: int) -> None:
        if runs > m.MOST_RUNS or size < runs * m.RUN_BYTES or (size and not runs):
            raise ValueError("changes of a wrong size")
        if not runs:
            return
        places, values = bytearray(runs * m.RUN_BYTES), bytearray(size - runs * m.RUN_BYTES)
        client.channel.receive_into(memoryview(places), memoryview(values))
        self._changes.add(MemoryChange(client, runs, bytes(places), bytes(values)))

    # -- who is there ------------------------------------------------------------------------

    def _welcome(self) -> None:
        ordered = [self._present[process] for process in sorted(self._present)]
        workers = [c for c in ordered if not c.hello.serves]
        servers = [c for c in ordered if c.hello.serves]
        for group in (workers, servers):
            for rank, client in enumerate(group):
                client.rank = rank
        members = [[client.member for client in group] for group in (workers, servers)]
        self._workers = dict(enumerate(workers))
        for client in list(self._clients):
            self._say(client, m.Welcome(client.rank, members[0], members[1], self._run))

    def _lose(self, client: Client, ending: m.Ending = m.Ending.VANISHED, words: str = "") -> None:
        """Tell all other clients that this one is lost; barriers no longer wait for it."""
        if client not in self._clients:
            return
        self._forget_client(client)
        if len(self._present) < self._processes:
            self._never.append(client.lost(ending, words))
        for other in list(self._clients):
            self._say(other, client.lost(ending, words))
        self._settle_without()

    def _forget_client(self, client: Client) -> None:
        self._clients.remove(client)
        if not client.hello.serves:
            self._workers.pop(client.rank, None)
        self._selector.unregister(client.channel)
        client.channel.close()
        for other, seq in self._locks.forget(client):
            self._tell(other, seq)
        self._values.forget(client)
        for arrived in self._meetings.values():
            arrived[:] = [a for a in arrived if a[0] is not client]
        self._over = not any(not c.hello.serves for c in self._clients)

    def _settle_without(self) -> None:
        """Complete the barriers that waited only for processes that have left."""
        for members in list(self._meetings):
            self._complete(members)

    def _say(self, client: Client, reply: m.Reply, *changes: bytes) -> None:
        try:
            client.answer(reply, *changes)
        except PeerLost:
            self._lose(client)

    def _tell(self, client: Client, seq: int, *, granted: bool = True, refused: str = "") -> None:
        """Answer a request, and send all changes that are new to the client."""
        runs, places, values = self._changes.news_for(client)
        answer = m.CoordinatorAnswer(seq, runs, granted, time=time.monotonic(), refused=refused)
        self._say(client, answer, places, values)
        if self._changes.many:
            self._changes.forget(min((c.seen for c in self._workers.values()), default=0))

    # -- memory and barriers -----------------------------------------------------------------

    def _meet(self, client: Client, request: m.Meet) -> None:
        members = tuple(request.members)
        self._meetings[members].append((client, request))
        self._complete(members)

    def _complete(self, members: tuple[int, ...]) -> None:
        """Answer the members at a barrier if all that are alive have arrived."""
        awaited = [r for r in (members or self._workers) if r in self._workers]
        arrived = self._meetings[members]
        if not arrived or len(arrived) < len(awaited):
            return
        del self._meetings[members]
        if self._refuse([client for client, _ in arrived], members):
            return
        forget = arrived[0][1].forget
        same = len({request.digest for _, request in arrived}) == 1
        for client, request in arrived:
            if forget:
                client.seen = self._changes.end
            self._tell(client, request.seq, refused="" if same else m.UNLIKE)

    def _refuse(self, clients: Sequence[Client], members: Sequence[int] = ()) -> bool:
        """Tell ``clients`` if a worker of their barrier has ended its script; return whether so."""
        missing = [lost for lost in self._ended if not members or lost.rank in members]
        for client in clients if missing else ():
            self._say(client, missing[0])
        return bool(missing)

    # -- locks -------------------------------------------------------------------------------

    def _acquire(self, client: Client, request: m.Acquire) -> None:
        granted = self._locks.acquire(client, request)
        if granted is not None:
            self._tell(client, request.seq, granted=granted)

    def _release(self, client: Client, request: m.Release) -> None:
        for other, seq in self._locks.release(client, request.lock):
            self._tell(other, seq)

    # -- waiting and waking ------------------------------------------------------------------

    def _await(self, client: Client, request: m.Await) -> None:
        if client.seen < self._changes.end:
            self._tell(client, request.seq)
        else:
            client.awaiting = request.seq

    def _wake(self, client: Client, request: m.Wake) -> None:
        for other in list(self._workers.values()):
            if other.awaiting is not None:
                seq, other.awaiting = other.awaiting, None
                self._tell(other, seq)

    def _peek(self, client: Client, request: m.Peek) -> None:
        client.awaiting = None
        self._tell(client, request.seq)

    # -- values ------------------------------------------------------------------------------

    def _put(self, client: Client, request: m.Put) -> None:
        for other, seq in self._values.put(request.key, request.value):
            self._say(other, m.CoordinatorAnswer(seq, value=request.value))

    def _get(self, client: Client, request: m.Get) -> None:
        value = self._values.known.get(request.key)
        if value is None:
            self._values.want(request.key, client, request.seq)
        else:
            self._say(client, m.CoordinatorAnswer(request.seq, value=value))
