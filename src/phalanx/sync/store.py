"""One versioned store of parameters in shards, which workers update in turn.

The store is memory that all workers share, so there is no server process: whoever pushes locks a
shard and runs the optimizer on it. Every push is applied exactly once, whatever the order
(Li et al., "Scaling distributed machine learning with the parameter server", 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.core.strategies import known_strategies
from phalanx.sync.clipping import clip_factor
from phalanx.sync.replica import Masks
from phalanx.sync.shard_optimizer import ELEMENTWISE
from phalanx.sync.strategy import StrategyContext, Timing
from phalanx.sync.transport.locks import shard_lock


class ByShard(Protocol):
    """A tensor for each shard, or for some of them."""

    def __getitem__(self, shard: int, /) -> Tensor: ...


class Store:
    """One worker's access to the shards. ``gradients[layout][shard]`` is what it pushes."""

    def __init__(self, context: StrategyContext) -> None:
        _refuse_whole(context)
        self._arena, self._shared, self._clock = context.arena, context.shared, context.clock
        layouts, self._shards = context.replica.layouts, context.arena.workers
        self._bounds = [[n.bounds(shard) for shard in range(self._shards)] for n in layouts]
        self._optimizers = [
            [self._shared.optimizer_of(i, shard) for shard in range(self._shards)]
            for i in range(len(layouts))
        ]
        first = self._arena.rank
        self.order = [(first + i) % self._shards for i in range(self._shards)]
        """Workers begin with different shards, so as not to meet."""
        self._seen = [0] * self._shards

    def buffers(self) -> list[list[Tensor]]:
        """Memory for gradients, per layout and shard."""
        layouts = self._shared.replica.layouts
        return [
            [torch.empty(high - low, dtype=n.dtype) for low, high in bounds]
            for n, bounds in zip(layouts, self._bounds, strict=True)
        ]

    def push(
        self,
        gradients: Sequence[ByShard],
        used: Masks,
        rate_factor: float,
        timing: Timing,
        shards: Sequence[int] | None = None,
        pull: Sequence[Tensor] = (),
    ) -> None:
        """Update ``shards`` (all), taking any that is free; copy each into ``pull`` at once."""
        waiting = list(self.order if shards is None else shards)
        while waiting:
            asked = self._clock.now()
            shard = self._enter_one(waiting)
            waiting.remove(shard)
            try:
                self._visit(shard, [g[shard] for g in gradients], used, rate_factor, asked, timing)
                self._copy(shard, pull)
            finally:
                self._arena.lock(shard_lock(shard)).release()

    def _enter_one(self, waiting: list[int]) -> int:
        """Lock a shard that is free; only when none is, wait for one."""
        for shard in waiting:
            if self._arena.lock(shard_lock(shard)).acquire(blocking=False):
                return shard
        self._arena.lock(shard_lock(waiting[0])).acquire()
        return waiting[0]

    def _visit(
        self,
        shard: int,
        gradients: list[Tensor],
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
        self, shard: int, gradients: Sequence[Tensor], used: Masks, rate_factor: float = 1.0
    ) -> None:
        """Run the optimizer on ``shard``, whose lock this worker holds."""
        for optimizers, gradient, mask in zip(self._optimizers, gradients, used, strict=True):
            optimizers[shard].update(gradient, mask, rate_factor)
        self._shared.versions[shard] += 1

    def pull(self, into: Sequence[Tensor]) -> None:
        """Copy every shard, each as a whole that nobody is updating."""
        for shard in self.order:
            with self._arena.lock(shard_lock(shard)):
                self._seen[shard] = int(self._shared.versions[shard])
                self._copy(shard, into)

    def _copy(self, shard: int, into: Sequence[Tensor]) -> None:
        for flat, parameters, bounds in zip(
            into, self._shared.parameters, self._bounds, strict=False
        ):
            low, high = bounds[shard]
            flat[low:high].copy_(parameters[low:high])


def normalise(
    gradients: Sequence[Sequence[Tensor]],
    weight: float,
    clip: float | None,
    emphasis: float = 1.0,
) -> None:
    """From a sum of weighted means to their mean, of a norm that ``clip`` limits.

    ``emphasis`` weighs the push against those of other workers: the gradient and not the rate,
    because momentum gathers gradients.
    """
    if weight == 1.0 and clip is None and emphasis == 1.0:
        return
    flat = [g for shards in gradients for g in shards]
    factor = 1.0 / weight
    if clip is not None:
        squares = sum(float(torch.linalg.vector_norm(g)) ** 2 for g in flat)
        factor *= clip_factor(squares * factor**2, clip)
    factor *= emphasis
    if factor != 1.0:
        torch._foreach_mul_(flat, factor)


def _refuse_whole(context: StrategyContext) -> None:
    """An optimizer that is not element-wise cannot run on one shard at a time."""
    if not context.shared.elementwise:
        kinds = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        takes_any = [n for n, t in known_strategies().items() if t.any_optimizer and n != "single"]
        raise InputError(
            f"the optimizer {type(context.replica.optimizer).__name__} cannot run in the store",
            f"Use one of {kinds}, or a strategy that takes any: {', '.join(takes_any)}.",
        )
