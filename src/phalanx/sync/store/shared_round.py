"""Steps through a store in shared memory, each taken when all have given their gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from phalanx.sync.arena.arena import Locks, shard_lock
from phalanx.sync.state.gradient_values import are_sound, clip_factor, squared_norm
from phalanx.sync.store.shared_store import SharedStore
from phalanx.sync.strategy import StrategyContext, Timing


class SharedRound:
    """Takes steps through memory that all workers share."""

    def __init__(self, context: StrategyContext) -> None:
        self._replica, self._shared = context.replica, context.shared
        self._arena, self._clock = context.arena, context.clock
        self._store, self._toll = SharedStore(context), context.toll
        layouts = self._replica.layouts
        shards = self._shards = len(layouts[0].shards)
        self._rows = [  # [layout][shard][rank]
            [[g[slice(*n.bounds(s))] for g in gradients] for s in range(shards)]
            for n, gradients in zip(layouts, self._shared.gradients, strict=True)
        ]
        mine = [[rows[self._arena.rank] for rows in shard] for shard in self._rows]
        self._sums = [[rows[0] for rows in shard] for shard in self._rows]
        self._collectors = self._replica.collector(mine)
        self._mine = [gradients[self._arena.rank] for gradients in self._shared.gradients]
        self.sender = context.encoding.sender(
            [
                (f"{i}.{s}", layout, s, mine[i][s])
                for i, layout in enumerate(layouts)
                for s in range(shards)
            ]
        )
        self._gone = context.gone
        self._arrivals = self._arena.region(f"{context.tag}.arrivals", shards + 1, torch.int64)
        self._arrived = self._arrivals.numpy()
        self._done = self._arena.region(f"{context.tag}.done", shards, torch.int64).numpy()
        self._step = self.bytes_sent = 0

    def begin(self) -> None:
        self.sender.begin(self._shared)
        self._step = int(self._done.min())

    def offer(self, weight: float, clip: float | None = None) -> None:
        masks = [collector.collect() for collector in self._collectors]
        finite = all(c.is_finite() for c in self._collectors) or are_sound(self._mine)
        self.bytes_sent = self.sender.offer(weight, masks) if finite else 0
        if finite and not self.sender.is_plain:  # a codec may have made a value infinite
            finite = are_sound(self._mine)
        self._shared.declare(weight, clip, masks, spoilt=not finite)

    def settle(self) -> None:
        """Do nothing: the shared state is the store."""

    def holding_slots(self) -> AbstractContextManager[None]:
        """Hold nothing: in lockstep the slots stay as they are."""
        return nullcontext()

    def take_part(self) -> Timing:
        """Push to every shard, then wait until all of them have the next version."""
        now, timing = self._clock.now, Timing()
        if refused := self._shared.spoilt_by():
            self._arena.barrier()  # until all have read it
            return Timing(refused=refused)
        self._step += 1
        for shard in self._store.order:
            asked = now()
            sent = self._toll.request(shard, self.bytes_sent / self._shards)
            timing.send += sent
            with self._arena.lock(shard_lock(shard)):
                timing.wait += now() - asked - sent
                self._arrived[shard] += 1
                if self._arrived[shard] == self._arena.workers:
                    self._arrived[shard] = 0
                    self._toll.serve(shard, 1 / self._shards)
                    self._complete(shard, timing)
        asked = now()
        self._arena.await_(lambda: bool((self._done >= self._step).all()), self._gone)
        for shard in self._store.order:  # its lock also makes the update visible here
            with self._arena.lock(shard_lock(shard)):
                pass
        updated = now()
        timing.wait += updated - asked
        for shard in self._store.order:
            self._toll.reply(shard, self._store.part)
        self._toll.settle()
        timing.reduce += now() - updated
        return timing

    def _complete(self, shard: int, timing: Timing) -> None:
        """Sum and update ``shard``, to which this worker was the last to push; if the norm of the
        whole gradient is needed, update all shards when the last one is summed."""
        began = self._clock.now()
        total = float(self._shared.weights.sum())
        for rows in self._rows:
            out = rows[shard][0]
            for other in rows[shard][1:]:
                out.add_(other)
            if total not in (0.0, 1.0):
                out.mul_(1.0 / total)
        timing.reduce += self._clock.now() - began
        if (clip := float(self._shared.clips.max())) == 0.0:
            self._update([shard], timing)
            return
        with self._arena.lock(Locks.GATE):
            self._arrived[-1] += 1
            last = self._arrived[-1] == self._shards
        if last:
            self._arrived[-1] = 0
            self._clip(clip)
            self._update(range(self._shards), timing)

    def _clip(self, limit: float) -> None:
        sums = [out for layout in self._sums for out in layout]
        if (factor := clip_factor(squared_norm(sums), limit)) < 1.0:
            torch._foreach_mul_(sums, factor)

    def _update(self, shards: list[int] | range, timing: Timing) -> None:
        began, masks = self._clock.now(), self._shared.used_by(slice(None))
        for shard in shards:
            self._store.apply(shard, self._sums, masks)
            self._done[shard] = self._step
        timing.update += self._clock.now() - began
        self._arena.wake()
