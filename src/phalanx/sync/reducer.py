"""Reduce-scatter within a team: each member sums some slices of all members' gradients.

It is the first half of the all-reduce of Rabenseifner, "Optimization of collective reduction
operations" (2004). In shared memory a member shows its gradient in a row of its own, and whoever
owns a slice adds up that slice of all rows, in the order of the members.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.sync.clipping import clip_factor
from phalanx.sync.replica import Masks
from phalanx.sync.strategy import StrategyContext


class Reducer:
    """``offer`` before the team meets, ``reduce`` after it; rows are free again once all have."""

    def __init__(self, context: StrategyContext) -> None:
        self._replica, self._shared = context.replica, context.shared
        self._team, self._rank = context.team, context.arena.rank
        layouts, shards = self._replica.layouts, context.arena.workers
        self.shards = tuple(range(self._team.index, shards, self._team.size))
        """Whose slices this member sums."""
        self._bounds = [[n.bounds(s) for s in range(shards)] for n in layouts]
        self.reduced = [
            [
                torch.empty(high - low, dtype=n.dtype)
                for low, high in map(bounds.__getitem__, self.shards)
            ]
            for n, bounds in zip(layouts, self._bounds, strict=True)
        ]
        """Per layout, and per shard of this member: what the team agreed on."""
        self._targets = [self._targets_of(i) for i in range(len(layouts))]
        self._collectors = self._replica.collector(self._targets)
        self._others = [
            [
                (out, [shared[m][slice(*bounds[s])] for m in self._team.members if m != self._rank])
                for s, out in zip(self.shards, own, strict=True)
            ]
            for bounds, own, shared in zip(
                self._bounds, self.reduced, self._shared.gradients, strict=True
            )
        ]
        sent = [
            (f"{i}.{s}", layout, s, self._targets[i][s])
            for i, layout in enumerate(layouts)
            for s in range(shards)
            if s not in self.shards and self._team.size > 1
        ]
        self.sender = context.wire.sender(sent)
        whole = self._team.size == context.arena.workers
        self._rows = slice(None) if whole else list(self._team.members)

    def _targets_of(self, layout: int) -> list[Tensor]:
        """Where this worker's gradient goes: its own slices stay here, the rest is shown."""
        mine = self._shared.gradients[layout][self._rank]
        targets = [mine[low:high] for low, high in self._bounds[layout]]
        for shard, own in zip(self.shards, self.reduced[layout], strict=True):
            targets[shard] = own
        return targets

    def begin(self) -> None:
        self.sender.begin(self._shared)

    def offer(self, weight: float, clip: float | None = None) -> int:
        """Show this worker's gradients; returns the bytes that go to others."""
        masks = [collector.collect() for collector in self._collectors]
        self._shared.declare(weight, clip, masks)
        return self.sender.offer(weight, masks)

    def offer_flats(self, flats: list[Tensor], weight: float, *, coded: bool = True) -> int:
        """Show something else that has the shape of the parameters."""
        for flat, targets, bounds in zip(flats, self._targets, self._bounds, strict=True):
            for target, (low, high) in zip(targets, bounds, strict=True):
                target.copy_(flat[low:high])
        self._shared.declare(weight, None, [None] * len(flats))
        return self.sender.send() if coded else 0

    def reduce(self) -> Masks:
        """Sum this member's slices; returns which parameters anybody used."""
        shared = self._shared
        total = float(shared.weights[self._rows].sum())
        for slices in self._others:
            for out, others in slices:
                for other in others:
                    out.add_(other)
                if total not in (0.0, 1.0):
                    out.mul_(1.0 / total)
        # Everyone decides alike, also a worker that had nothing to give: it costs a barrier.
        if (clip := float(shared.clips[self._rows].max())) > 0.0:
            self._clip(clip)
        return shared.used_by(self._rows)

    def _clip(self, limit: float) -> None:
        slices = [out for own in self.reduced for out in own]
        squares = sum(float(torch.linalg.vector_norm(out)) ** 2 for out in slices)
        self._shared.norms[self._rank] = squares
        self._team.barrier()
        factor = clip_factor(float(self._shared.norms[self._rows].sum()), limit)
        if factor < 1.0:
            torch._foreach_mul_(slices, factor)
