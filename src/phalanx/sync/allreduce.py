"""Synchronous data parallelism in shared memory: reduce-scatter, update, and nothing to gather.

Each worker sums one slice of everybody's gradients and updates that slice of the parameters,
which all workers see. It is the reduce-scatter and all-gather of Rabenseifner, "Optimization of
collective reduction operations" (2004), where the gather costs nothing because the memory is
shared, with the optimizer sharded between the halves as in Rajbhandari et al., "ZeRO" (2020).
"""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.sync.clipping import clip_factor
from phalanx.sync.shared_strategy import SharedStrategy
from phalanx.sync.strategy import StrategyContext, Timing


class AllReduce(SharedStrategy):
    """Two barriers a step: gradients are there; parameters are updated."""

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._meet = context.meet or context.arena.barrier
        self._admitted = 0.0
        rank, layouts = self._arena.rank, self._replica.layouts
        self._bounds = [n.bounds(rank) for n in layouts]
        self._reduced = [
            torch.empty(high - low, dtype=n.dtype)
            for (low, high), n in zip(self._bounds, layouts, strict=True)
        ]
        targets = [self._targets_of(i) for i in range(len(layouts))]
        self._collectors = self._replica.collector(targets)
        self._others = [
            [g[low:high] for other, g in enumerate(gradients) if other != rank]
            for (low, high), gradients in zip(self._bounds, self._shared.gradients, strict=True)
        ]
        self._bytes = sum(
            (n.size - len(own)) * n.dtype.itemsize
            for n, own in zip(layouts, self._reduced, strict=True)
        )
        if self._shared.elementwise:
            self._optimizers = [self._shared.optimizer_of(i, rank) for i in range(len(layouts))]

    def _targets_of(self, layout: int) -> list[Tensor]:
        """Where this worker's gradient goes: its own shard stays here, the rest is shown."""
        mine, shards = self._shared.gradients[layout][self._arena.rank], []
        for shard in range(self._arena.workers):
            low, high = self._replica.layouts[layout].bounds(shard)
            shards.append(mine[low:high])
        shards[self._arena.rank] = self._reduced[layout]
        return shards

    def exchange(self, weight: float, clip: float | None = None) -> Timing:
        ready = self._clock.now()
        self.offer(weight, clip)
        sent = self._clock.now()
        self._meet()
        timing = self.follow()
        timing.wait = self._admitted - sent
        timing.send, timing.bytes_sent = sent - ready, self._bytes
        return timing

    def offer(self, weight: float, clip: float | None = None) -> None:
        rank, shared = self._arena.rank, self._shared
        masks = [collector.collect() for collector in self._collectors]
        shared.weights[rank] = weight
        shared.clips[rank] = clip or 0.0
        shared.complete[rank] = all(mask is None for mask in masks)
        if not shared.complete[rank]:
            for table, mask in zip(shared.used, masks, strict=True):
                table[rank] = 1 if mask is None else list(mask)

    def follow(self) -> Timing:
        now = self._clock.now
        self._admitted = now()
        self._replica.drop_gradients()
        masks = self._reduce()
        reduced = now()
        if self._shared.elementwise:
            self._update(masks)
        else:
            self._update_whole(masks)
        updated = now()
        self._arena.barrier()
        self.refresh()
        return Timing(
            reduce=reduced - self._admitted, update=updated - reduced, settle=now() - updated
        )

    def _reduce(self) -> list[bytes | None]:
        """Sum this worker's slices; returns which parameters anybody used."""
        total = float(self._shared.weights.sum())
        for others, out in zip(self._others, self._reduced, strict=True):
            for other in others:
                out.add_(other)
            if total not in (0.0, 1.0):
                out.mul_(1.0 / total)
        # Everyone decides alike, also a worker that had nothing to give: it costs a barrier.
        if (clip := float(self._shared.clips.max())) > 0.0:
            self._clip(clip)
        if self._shared.complete.all():
            return [None] * len(self._reduced)
        complete = self._shared.complete[:, None]  # whose row of the table is not written
        return [(table | complete).max(axis=0).tobytes() for table in self._shared.used]

    def _clip(self, limit: float) -> None:
        squares = sum(float(torch.linalg.vector_norm(out)) ** 2 for out in self._reduced)
        self._shared.norms[self._arena.rank] = squares
        self._arena.barrier()
        factor = clip_factor(float(self._shared.norms.sum()), limit)
        if factor < 1.0:
            for out in self._reduced:
                out.mul_(factor)

    def _update(self, masks: list[bytes | None]) -> None:
        for optimizer, gradient, mask in zip(self._optimizers, self._reduced, masks, strict=True):
            optimizer.update(gradient, mask)

    def _update_whole(self, used: list[bytes | None]) -> None:
        """An optimizer that is not element-wise runs on the first worker, for everyone."""
        whole = [gradients[0] for gradients in self._shared.gradients]
        for flat, (low, high), out in zip(whole, self._bounds, self._reduced, strict=True):
            flat[low:high] = out
        self._arena.barrier()
        if self._arena.rank == 0:
            self._step_users_optimizer(whole, used)

    def _step_users_optimizer(self, whole: list[Tensor], used: list[bytes | None]) -> None:
        replica = self._replica
        for i, layout in enumerate(replica.layouts):
            for n, (place, parameter) in enumerate(
                zip(layout.places, replica.parameters[i], strict=True)
            ):
                mask = used[i]
                if mask is None or mask[n]:
                    parameter.grad = place.view(whole[i]).to(parameter.device)
        replica.optimizer.step()
        replica.optimizer.zero_grad(set_to_none=True)
        if self._staged:
            replica.copy_out(self._shared.parameters)
