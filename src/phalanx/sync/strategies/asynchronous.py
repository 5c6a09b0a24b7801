"""Asynchronous data parallelism: workers update the store one by one, without waiting.

A push is one visit per shard, whose owner locks it and runs the optimizer on it: this worker on
one machine, a server between machines. No worker waits for another's step (Dean et al., "Large
scale distributed deep networks", 2012). On a CPU there is nothing to pull on one machine: the model
reads the store itself, also while others update it, as in Recht et al., "Hogwild!" (2011), but no
update is ever lost. Between machines the answer to a push brings the newest parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch

from phalanx.core.background import BackgroundThread
from phalanx.policies.sample_assignment import Applied
from phalanx.sync.state.replica import Masks
from phalanx.sync.state.shared_state import State
from phalanx.sync.store.shared_store import make_store
from phalanx.sync.strategies.shared_strategy import StoreStrategy
from phalanx.sync.strategy import StrategyContext, Timing


class Asynchronous(StoreStrategy):
    """``overlap=yes`` pushes while the next step computes, after Wang et al., "OSP" (2019)."""

    def __init__(
        self, context: StrategyContext, overlap: str = "no", servers: int | None = None
    ) -> None:
        self.own_copy = self.own_copy or context.toll.apart
        super().__init__(context)
        self._store = make_store(context, servers)
        self._rate_factor, self._emphasis = 1.0 / context.rate_divisor, 1.0
        self._given = 0
        self._buffers = self._store.make_buffers()
        self._overlaps = overlap == "yes"
        self._thread = BackgroundThread("phalanx-push")
        # In the training's own stream a copy would wait for the step, while a shard is locked.
        beside = self._overlaps and self._replica.device.type == "cuda"
        self._stream = torch.cuda.Stream(self._replica.device) if beside else None
        self._last: Callable[[], object] | None = None
        """A function that makes the last push, or waits until it is made."""
        self._beside = Timing()
        """Times of the push that runs during the next step; that step reports them."""

    def begin(self) -> None:
        self._buffers.sender.begin(self._shared)
        self._store.begin()
        super().begin()

    def emphasise(self, factor: float) -> None:
        self._emphasis = factor

    def covers(self, total: int) -> None:
        self._given = total

    def fence(self, rank: int) -> Applied | None:
        return self._store.fence(rank)

    def exchange(self, weight: float, clip: float | None = None) -> Timing:
        ready = self._clock.now()
        self._settle()
        began = self._clock.now()
        timing, self._beside = self._beside, Timing()
        # Waiting for the last push is already counted in that push's own time.
        carried = timing.wait + timing.reduce + timing.update
        timing.wait += max(0.0, began - ready - carried)
        used = self._buffers.collect()
        self._buffers.total = self._given
        self._replica.drop_gradients()
        if weight > 0.0 and (finite := self._buffers.is_finite()):
            self._buffers.normalise(weight, clip, self._emphasis)
            timing.norm = self._buffers.norm
            timing.bytes_sent += self._store.encode(self._buffers)
            finite = self._buffers.is_encoded_finite()
        timing.send += self._clock.now() - began
        if weight > 0.0:
            pushed = self._beside if self._overlaps else timing
            timing.refused = None if finite else (self._arena.rank,)
            self._carry(lambda: self._push(used if finite else None, pushed))
        return timing

    def _carry(self, push: Callable[[], None]) -> None:
        """Push now, or with ``overlap`` during the next step, whose parameters then lack this push.
        In scripted time, which has no threads, push at the end of that step."""
        if not self._overlaps:
            push()
        elif self._arena.scripted:
            self._last = push
        else:
            self._last = self._thread.submit(self._aside, push).result

    def _aside(self, push: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            push()

    def _settle(self) -> None:
        """Wait until the push that runs during the step is applied."""
        last, self._last = self._last, None
        if last is not None:
            last()

    def _push(self, used: Masks | None, timing: Timing) -> None:
        """Push gradients; if ``used`` is ``None``, only fetch the parameters."""
        if used is None:
            self.refresh()
            return
        self._store.push_buffers(self._buffers, used, self._rate_factor, timing, self._staged)

    def rest(self) -> None:
        self._settle()

    def drain(self) -> None:
        self.rest()
        super().drain()

    def export_private(self) -> State:
        return self._buffers.sender.export_state()

    def import_private(self, state: State) -> None:
        self._buffers.sender.import_state(state)
