"""Asynchronous data parallelism: one versioned store of shards that workers update in turn.

A push is one visit per shard: lock it, run the optimizer on it. Nobody waits for anybody else's
step (Dean et al., "Large scale distributed deep networks", 2012; Li et al., "Scaling distributed
machine learning with the parameter server", 2014). The store is memory that all workers share,
so there is no server process, and on a CPU nothing to pull: the model reads the store itself,
also while others update it, as in Recht et al., "Hogwild!" (2011), but no update is ever lost.
"""

from __future__ import annotations

import torch

from phalanx.core.errors import InputError
from phalanx.sync.clipping import clip_factor
from phalanx.sync.shard_optimizer import ELEMENTWISE
from phalanx.sync.shared_strategy import SharedStrategy
from phalanx.sync.strategy import StrategyContext, Timing
from phalanx.sync.transport.locks import shard_lock


class Store(SharedStrategy):
    """Workers take turns shard by shard, each beginning with another one."""

    def __init__(self, context: StrategyContext) -> None:
        _refuse_whole(context)
        super().__init__(context)
        self._rate_factor = 1.0 / context.rate_divisor
        workers, rank, layouts = self._arena.workers, self._arena.rank, self._replica.layouts
        self._order = [(rank + i) % workers for i in range(workers)]
        self._locks = [shard_lock(shard) for shard in range(workers)]
        self._bounds = [[n.bounds(shard) for shard in range(workers)] for n in layouts]
        self._gradients = [
            [torch.empty(high - low, dtype=n.dtype) for low, high in bounds]
            for n, bounds in zip(layouts, self._bounds, strict=True)
        ]
        self._collectors = self._replica.collector(self._gradients)
        self._optimizers = [
            [self._shared.optimizer_of(i, shard) for shard in range(workers)]
            for i in range(len(layouts))
        ]
        self._seen = [0] * workers
        self._bytes = sum(n.size * n.dtype.itemsize for n in layouts) * (2 if self._staged else 1)

    def exchange(self, weight: float, clip: float | None = None) -> Timing:
        now, ready = self._clock.now, self._clock.now()
        used = [collector.collect() for collector in self._collectors]
        self._replica.drop_gradients()
        if weight <= 0.0:
            return Timing(send=now() - ready)
        self._normalise(weight, clip)
        timing = Timing(send=now() - ready, bytes_sent=self._bytes)
        waiting = list(self._order)
        while waiting:
            asked = now()
            shard = self._enter_one(waiting)
            waiting.remove(shard)
            timing.wait += now() - asked
            try:
                self._visit(shard, used, timing)
            finally:
                self._arena.lock(self._locks[shard]).release()
        return timing

    def _enter_one(self, waiting: list[int]) -> int:
        """Lock a shard that is free; only when none is, wait for one."""
        for shard in waiting:
            if self._arena.lock(self._locks[shard]).acquire(blocking=False):
                return shard
        self._arena.lock(self._locks[waiting[0]]).acquire()
        return waiting[0]

    def _normalise(self, weight: float, clip: float | None) -> None:
        if weight == 1.0 and clip is None:
            return
        gradients = [g for shards in self._gradients for g in shards]
        factor = 1.0 / weight
        if clip is not None:
            squares = sum(float(torch.linalg.vector_norm(g)) ** 2 for g in gradients)
            factor *= clip_factor(squares * factor**2, clip)
        if factor != 1.0:
            torch._foreach_mul_(gradients, factor)

    def _visit(self, shard: int, used: list[bytes | None], timing: Timing) -> None:
        now, admitted = self._clock.now, self._clock.now()
        version = int(self._shared.versions[shard])
        timing.staleness = max(timing.staleness, version - self._seen[shard])
        for i, optimizers in enumerate(self._optimizers):
            optimizers[shard].update(self._gradients[i][shard], used[i], self._rate_factor)
        self._seen[shard] = version + 1
        self._shared.versions[shard] = version + 1
        updated = now()
        self._pull(shard)
        timing.update += updated - admitted
        timing.reduce += now() - updated

    def _pull(self, shard: int) -> None:
        """A model on an accelerator has its own copy of the parameters."""
        for i, staged in enumerate(self._staged):
            low, high = self._bounds[i][shard]
            staged[low:high].copy_(self._shared.parameters[i][low:high])

    def refresh(self) -> None:
        for shard in self._order:
            with self._arena.lock(self._locks[shard]):
                self._seen[shard] = int(self._shared.versions[shard])
                self._pull(shard)


def _refuse_whole(context: StrategyContext) -> None:
    """An optimizer that is not element-wise cannot run on one shard at a time."""
    if not context.shared.elementwise:
        kinds = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        raise InputError(
            f"the optimizer {type(context.replica.optimizer).__name__} cannot run in the store",
            f"Use one of {kinds}, or --strategy allreduce, which takes any optimizer.",
        )
