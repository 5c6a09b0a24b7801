"""Asynchronous data parallelism: workers update the store one by one, without waiting.

A push is one visit per shard: lock it, run the optimizer on it. No worker waits for another's
step (Dean et al., "Large scale distributed deep networks", 2012). On a CPU there is nothing to
pull: the model reads the store itself, also while others update it, as in Recht et al.,
"Hogwild!" (2011), but no update is ever lost.
"""

from __future__ import annotations

from phalanx.rules.ledger import Applied
from phalanx.sync.state.replica import Masks
from phalanx.sync.state.shared_state import State
from phalanx.sync.store.push_thread import make_pusher
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
        device = self._replica.device
        self._pusher = make_pusher(self._overlaps, device, scripted=self._arena.scripted)
        self._beside = Timing()
        """Of the push that goes on beside the next step, which tells of it."""

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
        # Waiting for the last push is a part of the time that the push itself took.
        carried = timing.wait + timing.reduce + timing.update
        timing.wait += max(0.0, began - ready - carried)
        used = self._buffers.collect()
        self._buffers.total = self._given
        self._replica.drop_gradients()
        if weight > 0.0 and (finite := self._buffers.is_finite()):
            self._buffers.normalise(weight, clip, self._emphasis)
            timing.bytes_sent += self._store.encode(self._buffers)
            finite = self._buffers.is_encoded_finite()
        timing.send += self._clock.now() - began
        if weight > 0.0:
            pushed = self._beside if self._overlaps else timing
            timing.refused = None if finite else (self._arena.rank,)
            self._pusher.carry(lambda: self._push(used if finite else None, pushed))
        return timing

    def _settle(self) -> None:
        """What was pushed beside the computation is applied now."""
        self._pusher.wait()

    def _push(self, used: Masks | None, timing: Timing) -> None:
        """``None``: what there is must not count; the newest parameters are taken all the same."""
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
