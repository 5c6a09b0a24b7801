"""The parameter store over TCP: a server keeps a shard of each store and serves all hosts.

After Li et al., "Scaling distributed machine learning with the parameter server" (2014). One thread
per connection: receiving, decoding and updating release Python's lock, so clients overlap. A
gradient is received into separate memory and applied only when all of it has arrived: a client that
breaks off in the middle has pushed nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from phalanx.core.errors import PeerLost, PhalanxError
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.listener import Listener
from phalanx.sync.store.remote import store_messages as m
from phalanx.sync.store.remote.store_rounds import Rounds
from phalanx.sync.store.remote.store_shard import Decoders, Shard, byte_view

MAX_STORES = 64


class Desk:
    """The memory, optimizers and decoders for one request to a store."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.optimizers, self.decoders = shard.optimizers(), Decoders(shard.description)
        self._gradients: list[Tensor] = []
        self._copy: list[Tensor] = []

    def memory(self) -> list[Tensor]:
        """Return memory for a gradient."""
        self._gradients = self._gradients or self._shard.blank()
        return self._gradients

    def copy_parameters(self) -> list[Tensor]:
        self._copy = self._copy or self._shard.blank()
        for copy, parameters in zip(self._copy, self._shard.parameters, strict=True):
            copy.copy_(parameters)
        return self._copy


class HostedStore:
    """One optimizer's shard on this server, and how many connections use it."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.rounds = shard, Rounds(shard)
        self.users = 0
        self._desks: list[Desk] = []

    @contextlib.contextmanager
    def desk(self) -> Iterator[Desk]:
        """Lend a desk that no other request uses; make one if all are lent."""
        try:
            desk = self._desks.pop()
        except IndexError:
            desk = Desk(self.shard)
        try:
            yield desk
        finally:
            self._desks.append(desk)


class HostedStores:
    """All stores of a server."""

    def __init__(self) -> None:
        self._stores: dict[str, HostedStore] = {}
        self._lock = threading.Lock()

    def open(self, request: m.Open) -> HostedStore:
        """Return the store of that name: a new one, or one with the same description."""
        with self._lock:
            store = self._stores.get(request.store)
            if store is None:
                if len(self._stores) >= MAX_STORES:
                    raise m.StoreRefused(f"this server has {MAX_STORES} stores already")
                store = self._stores[request.store] = HostedStore(Shard(request.description))
            if store.shard.description != request.description:
                raise m.StoreRefused(
                    "a model or optimizer is not the one that the store was opened with",
                    "Build the same model and optimizer on all machines.",
                )
            store.users += 1
            return store

    def leave(self, store: HostedStore) -> None:
        """Note that one connection less uses ``store``."""
        with self._lock:
            store.users -= 1

    def drop(self, name: str) -> None:
        """Forget the store."""
        with self._lock:
            self._stores.pop(name, None)


class _Visit:
    """A store that one connection uses, and the name and ranks of its client."""

    def __init__(self, store: HostedStore, request: m.Open, peer: str) -> None:
        self.store, self.shard = store, store.shard
        self.name, self.ranks = request.client or peer, request.ranks


class Session:
    """Serves one client's connection."""

    def __init__(self, stores: HostedStores, channel: Channel) -> None:
        self._stores, self._channel = stores, channel
        self._visits: dict[str, _Visit] = {}

    def run(self) -> None:
        try:
            while True:
                header, size = self._channel.receive()
                self._handle(m.read_request(header), size)
        except PeerLost:
            pass
        except Exception as error:  # only this client's connection ends
            self._tell(error)
        finally:
            self._channel.close()
            for visit in self._visits.values():
                self._stores.leave(visit.store)
                visit.store.rounds.lose(visit.ranks, visit.name)

    def _handle(self, request: m.Request, size: int) -> None:
        if isinstance(request, m.Open):
            self._sized(size, 0)
            self._open(request)
        elif isinstance(request, m.Drop):
            self._sized(size, 0)
            self._stores.drop(request.store)
            self._answer(m.StoreDone(0, 0))
        else:
            self._visit(self._of(request.store), request, size)

    def _visit(self, visit: _Visit, request: m.Request, size: int) -> None:
        if isinstance(request, m.Push):
            self._push(visit, request, size)
        elif isinstance(request, m.Contribute):
            self._contribute(visit, request, size)
        elif isinstance(request, m.Load):
            self._load(visit, size)
        else:
            self._sized(size, 0)
            if isinstance(request, m.Pull):
                self._pull(visit, request)
            elif isinstance(request, m.Fence):
                self._fence(visit, request.rank)
            elif isinstance(request, m.Save):
                self._save(visit)
            elif isinstance(request, m.Commit):
                self._commit(visit, request)

    def _of(self, name: str) -> _Visit:
        if name not in self._visits:
            raise m.StoreRefused("a store is used that was not opened")
        return self._visits[name]

    def _open(self, request: m.Open) -> None:
        if request.store not in self._visits:
            store = self._stores.open(request)
            self._visits[request.store] = _Visit(store, request, self._channel.peer)
            store.rounds.arrive(request.ranks)
        shard = self._visits[request.store].shard
        if shard.description != request.description:
            raise m.StoreRefused("one connection describes one store in two ways")
        self._answer(m.Opened(shard.slot_names))

    def _load(self, visit: _Visit, size: int) -> None:
        state = [t.new_empty(t.shape) for t in visit.shard.state()]
        self._receive(state, size)
        visit.store.rounds.reset()
        with visit.shard.lock:
            before = visit.shard.version
            visit.shard.load(state)
            version = visit.shard.version
        self._answer(m.StoreDone(before, version))

    def _save(self, visit: _Visit) -> None:
        with visit.shard.lock:
            version = visit.shard.version
            self._answer(m.StoreDone(version, version), visit.shard.state())

    def _push(self, visit: _Visit, request: m.Push, size: int) -> None:
        visit.shard.check(request.groups, request.used)
        with visit.store.desk() as desk:
            gradients = desk.memory()
            self._receive_gradient(desk, request.encoded, gradients, size)
            asked = time.perf_counter()
            with visit.shard.lock:
                if request.rank in visit.shard.fenced:
                    raise m.StoreRefused(
                        f"worker {request.rank} was considered lost; the others went on"
                    )
                began, before = time.perf_counter(), visit.shard.version
                visit.shard.update(
                    desk.optimizers, gradients, request.groups, request.used, request.rate_factor
                )
                if request.rank >= 0:
                    visit.shard.applied[request.rank] = request.total
                updated = time.perf_counter() - began
                done = m.StoreDone(before, before + 1, began - asked, updated)
                tensors = self._outgoing(visit, desk, done) if request.reply else []
            if tensors is not None:
                self._answer(done, tensors)

    def _fence(self, visit: _Visit, rank: int) -> None:
        """Refuse later pushes of a lost worker, and answer how far its pushes have come."""
        with visit.shard.lock:
            visit.shard.fenced.add(rank)
            total = visit.shard.applied.get(rank, 0)
        self._answer(m.Fenced(total))

    def _pull(self, visit: _Visit, request: m.Pull) -> None:
        with visit.store.desk() as desk:
            with visit.shard.lock:
                version = visit.shard.version
                done = m.StoreDone(version, version)
                tensors = self._outgoing(visit, desk, done) if version != request.have else []
            if tensors is not None:
                self._answer(done, tensors)

    def _outgoing(self, visit: _Visit, desk: Desk, done: m.StoreDone) -> list[Tensor] | None:
        """Return a copy of the parameters to send; ``None`` if they have been sent.

        The only client of a store is sent the shard's own memory, under the lock. Among several, a
        client with a slow link would block the others' pushes so long: it is sent a copy later.
        """
        if visit.store.users == 1:
            self._answer(done, visit.shard.parameters)
            return None
        return desk.copy_parameters()

    def _contribute(self, visit: _Visit, request: m.Contribute, size: int) -> None:
        visit.shard.check(request.groups, request.used)
        row = visit.store.rounds.claim(request)
        try:
            if request.empty:
                self._sized(size, 0)
            else:
                with visit.store.desk() as desk:
                    self._receive_gradient(desk, request.encoded, row, size)
        except BaseException:
            visit.store.rounds.withdraw(request)
            raise
        self._told(lambda: self._added(visit, request))

    def _added(self, visit: _Visit, request: m.Contribute) -> None:
        visit.store.rounds.add(request)
        squares = visit.store.rounds.wait(request.step, lambda: not self._channel.poll(0.0))
        if squares is None:
            self._answer_step(visit)
        else:
            self._answer(m.Squares(squares))

    def _commit(self, visit: _Visit, request: m.Commit) -> None:
        def commit() -> None:
            visit.store.rounds.commit(request.step, request.factor)
            self._answer_step(visit)

        self._told(commit)

    def _answer_step(self, visit: _Visit) -> None:
        """Answer with the step's parameters, without a lock: the next step awaits this client."""
        version = visit.shard.version
        self._answer(m.StoreDone(version - 1, version), visit.shard.parameters)

    def _told(self, action: Callable[[], None]) -> None:
        """Do ``action``; if another client is lost, only this request fails."""
        try:
            action()
        except PeerLost as error:
            self._answer(m.Failed(error.cause[:2000], error.remedy[:2000], lost=True))

    # -- bytes ------------------------------------------------------------------------------

    def _receive_gradient(
        self, desk: Desk, encoded: m.Encoded | None, into: list[Tensor], size: int
    ) -> None:
        if encoded is None:
            self._receive(into, size)
            return
        message = desk.decoders.tensors(encoded)
        self._receive([tensor for tensors in message for tensor in tensors], size)
        desk.decoders.decode(encoded, message, into)

    def _receive(self, tensors: Sequence[Tensor], size: int) -> None:
        self._sized(size, sum(t.numel() * t.itemsize for t in tensors))
        self._channel.receive_into(*map(byte_view, tensors))

    def _sized(self, size: int, expected: int) -> None:
        if size != expected:
            raise m.StoreRefused(f"a message has {size} bytes where {expected} were expected")

    def _answer(self, answer: m.Answer, tensors: Sequence[Tensor] = ()) -> None:
        self._channel.send(m.pack(answer), *map(byte_view, tensors))

    def _tell(self, error: Exception) -> None:
        cause = error.cause if isinstance(error, PhalanxError) else str(error)
        remedy = error.remedy if isinstance(error, PhalanxError) else ""
        with contextlib.suppress(PeerLost):
            self._answer(m.Failed(cause[:2000], remedy[:2000]))


def serve_stores(listener: Listener, ended: Callable[[], bool]) -> None:
    """Accept clients until ``ended``."""
    stores = HostedStores()
    while not ended():
        channel = listener.accept(timeout=0.25)
        if channel is not None and channel.introduction.purpose != m.STORE:
            channel.close()
        elif channel is not None:
            session = Session(stores, channel)
            threading.Thread(target=session.run, daemon=True, name=channel.peer).start()
