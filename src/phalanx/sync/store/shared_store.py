"""One versioned store of parameters in shards, which workers update in turn.

On one host the store is memory that all workers share, so there is no server process: a worker
that pushes locks a shard and runs the optimizer on it. Every push is applied exactly once, whatever
the order (Li et al., "Scaling distributed machine learning with the parameter server", 2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.core.spec.strategies import known_strategies
from phalanx.policies.sample_assignment import Applied
from phalanx.sync.arena.arena import shard_lock
from phalanx.sync.reduce.reducer import Reducer
from phalanx.sync.state.replica import Masks
from phalanx.sync.state.shard_optimizer import ELEMENTWISE
from phalanx.sync.state.shared_state import State
from phalanx.sync.store.push_buffers import PushBuffers
from phalanx.sync.strategy import StrategyContext, Timing

if TYPE_CHECKING:
    from phalanx.sync.store.remote.remote_store import RemoteStore


ByShard = Sequence[Tensor] | Mapping[int, Tensor]
"""A tensor for each shard, or for some of them."""


class SharedStore:
    """One worker's access to the shards in shared memory; ``RemoteStore`` is that between machines.
    A worker pushes ``gradients[layout][shard]``."""

    def __init__(self, context: StrategyContext) -> None:
        self._arena, self._shared, self._clock = context.arena, context.shared, context.clock
        self._staging = context.replica.staging
        self._replica, self._encoding = context.replica, context.encoding
        layouts, self._toll = context.replica.layouts, context.toll
        self._shards = len(layouts[0].shards)
        self._bounds = [[n.bounds(shard) for shard in range(self._shards)] for n in layouts]
        self._optimizers = [
            [self._shared.optimizer_of(i, shard) for shard in range(self._shards)]
            for i in range(len(layouts))
        ]
        self._locks = [self._arena.lock(shard_lock(shard)) for shard in range(self._shards)]
        first = self._arena.rank
        self.order = [(first + i) % self._shards for i in range(self._shards)]
        """The order of visiting shards: workers begin with different ones, so they seldom meet."""
        self._seen = [0] * self._shards
        self.part = sum(n.size * n.dtype.itemsize for n in layouts) / self._shards
        """The mean bytes of a shard."""
        self._coded = 1.0

    def make_buffers(self) -> PushBuffers:
        """Make buffers for gradients to push."""
        return PushBuffers(self._replica, self._replica.layouts, self._encoding)

    def encode(self, buffers: PushBuffers) -> int:
        """Encode and decode the next push, as the store receives it; return its bytes. Between
        machines they are counted when they are sent, and 0 is returned."""
        sent = buffers.sender.send()
        self._coded = sent / (self.part * self._shards)
        return sent

    def begin(self) -> None:
        """Bring the newest parameters to the store. Collective.

        Here the shared state is the store: there is nothing to hand over.
        """

    def settle(self) -> None:
        """Bring the shared state up to date with the store, after the last push. Collective."""

    @contextmanager
    def holding_slots(self) -> Iterator[None]:
        """Hold every shard, so that slots in the shared state stay as the store has them."""
        with ExitStack() as held:
            for lock in sorted({shard_lock(shard) for shard in range(self._shards)}):
                held.enter_context(self._arena.lock(lock))
            yield

    def push_buffers(
        self,
        buffers: PushBuffers,
        used: Masks,
        rate_factor: float,
        timing: Timing,
        pull: Sequence[Tensor] | None = None,
    ) -> None:
        """Push what was encoded; ``pull``, unless it is ``None``, gets the new parameters."""
        self.push(buffers.gradients, used, rate_factor, timing, pull=pull or ())

    def fence(self, rank: int) -> Applied | None:
        """Stop a lost worker's pushes, and return how far they have come; ``None`` here, because on
        one host no worker goes on without another."""
        return None

    def push_for(self, reducer: Reducer) -> None:
        """Prepare to push a team's sums; in shared memory there is nothing to prepare."""

    def push_reduced(
        self, reducer: Reducer, used: Masks, rate_factor: float, timing: Timing
    ) -> None:
        """Push a team's sum, of which each member pushes its slices. Every member calls it."""
        gradients = [
            dict(zip(reducer.shards, own, strict=True)) for own in reducer.reduced
        ]  # by shard; a member only ever uses its own
        self.push(gradients, used, rate_factor, timing, shards=reducer.shards)

    def push(
        self,
        gradients: Sequence[ByShard],
        used: Masks,
        rate_factor: float,
        timing: Timing,
        shards: Sequence[int] | None = None,
        pull: Sequence[Tensor] = (),
    ) -> None:
        """Update ``shards`` (default: all), free ones first; copy each into ``pull`` at once."""
        waiting = list(self.order if shards is None else shards)
        while waiting:
            asked, coded = self._clock.now(), self._coded if shards is None else 1.0
            shard = waiting[0]
            if self._toll.charges:
                sent = self._toll.request(shard, self.part * coded, 1 / self._shards)
                timing.send, timing.wait = timing.send + sent, timing.wait - sent
            shard = self._enter_one(waiting)
            waiting.remove(shard)
            try:
                self._visit(shard, gradients, used, rate_factor, asked, timing)
                if pull:
                    self._copy(shard, pull)
            finally:
                self._locks[shard].release()
            if self._toll.charges:
                self._toll.reply(shard, self.part if pull else 0.0)
        if self._toll.charges:
            given = self._clock.now()
            updates = self._toll.settle()
            timing.update += updates
            timing.reduce += self._clock.now() - given - updates

    def _enter_one(self, waiting: list[int]) -> int:
        """Lock a shard that is free, or, if none is, wait for the first; return it."""
        for shard in waiting:
            if self._locks[shard].acquire(blocking=False):
                return shard
        self._locks[waiting[0]].acquire()
        return waiting[0]

    def _visit(
        self,
        shard: int,
        gradients: Sequence[ByShard],
        used: Masks,
        rate_factor: float,
        asked: float,
        timing: Timing,
    ) -> None:
        admitted = self._clock.now()
        timing.wait += admitted - asked
        late = int(self._shared.versions[shard]) - self._seen[shard]
        timing.staleness = max(timing.staleness, late)
        self.apply(shard, gradients, used, rate_factor)
        self._seen[shard] = int(self._shared.versions[shard])
        timing.update += self._clock.now() - admitted

    def apply(
        self, shard: int, gradients: Sequence[ByShard], used: Masks, rate_factor: float = 1.0
    ) -> None:
        """Run the optimizer on ``shard``, whose lock this worker holds."""
        for optimizers, parts, mask in zip(self._optimizers, gradients, used, strict=True):
            optimizers[shard].update(parts[shard], mask, rate_factor)
        self._shared.versions[shard] += 1

    def pull_reduced(self, reducer: Reducer, into: Sequence[Tensor]) -> None:
        """Copy the newest parameters, which a team has just updated. Every member calls it."""
        self.pull(into)

    def export_private(self) -> State:
        """Return the state of this worker's pushes that no other worker has."""
        return {}

    def import_private(self, state: State) -> None:
        pass

    def pull_newer(self, into: Sequence[Tensor], taken: list[int]) -> list[int]:
        """Pull unless ``into`` has the versions ``taken``; return the versions it has now."""
        versions: list[int] = self._shared.versions.tolist()
        if versions != taken:
            self.pull(into)
        return versions

    def pull(self, into: Sequence[Tensor]) -> None:
        """Copy the newest parameters, without reading a shard while it is updated."""
        for shard in self.order:
            if self._toll.charges:
                self._toll.request(shard, 0.0)
            with self._locks[shard]:
                self._seen[shard] = int(self._shared.versions[shard])
                if into:
                    self._copy(shard, into)
            if self._toll.charges:
                self._toll.reply(shard, self.part)
        if self._toll.charges:
            self._toll.settle()

    def _copy(self, shard: int, into: Sequence[Tensor]) -> None:
        parts = [slice(*bounds[shard]) for bounds in self._bounds]
        flats = zip(into, self._shared.parameters, parts, strict=True)
        self._staging.fetch((flat[part], shared[part]) for flat, shared, part in flats)


def make_store(context: StrategyContext, servers: int | None = None) -> SharedStore | RemoteStore:
    refuse_whole(context)
    if context.arena.hosts is None:
        return SharedStore(context)
    from phalanx.sync.store.remote.remote_store import RemoteStore

    return RemoteStore(context, servers)


def refuse_whole(context: StrategyContext) -> None:
    """Refuse an optimizer that is not element-wise: it cannot run on one shard at a time."""
    if not context.shared.elementwise:
        kinds = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        takes_any = [n for n, t in known_strategies().items() if t.any_optimizer and n != "single"]
        raise InputError(
            f"the optimizer {type(context.replica.optimizer).__name__} cannot run in the store",
            f"Use one of {kinds}, or a strategy that takes any: {', '.join(takes_any)}.",
        )
