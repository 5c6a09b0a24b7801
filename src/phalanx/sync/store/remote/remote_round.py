"""Steps through a store on other machines, each taken when all have given their gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager

from phalanx.sync.reduce.reducer import Reducer
from phalanx.sync.store.remote.remote_store import RemoteStore
from phalanx.sync.store.remote.store_client import Share
from phalanx.sync.strategy import StrategyContext, Timing


class RemoteRound:
    """Lets the workers of a host sum their gradients, and one of them contribute the sum."""

    def __init__(self, context: StrategyContext, servers: int | None) -> None:
        hosts = context.arena.hosts
        assert hosts is not None
        self._shared, self._host, self._clock = context.shared, context.arena.host, context.clock
        self._store, self._reducer = RemoteStore(context, servers), Reducer(context, across=False)
        self._here, self._leaders = list(hosts.here), hosts.leaders(context.team.members)
        self._codec, leads = context.encoding.codec, self._reducer.leads
        streams = self._store.client.streams(self._reducer.sums)
        self.sender = context.encoding.sender(streams if leads and self._codec else [])
        self._step = self.bytes_sent = 0

    def begin(self) -> None:
        self.sender.begin(self._shared)
        self._store.begin()
        self._step = 0

    def settle(self) -> None:
        self._store.settle()

    def holding_slots(self) -> AbstractContextManager[None]:
        return self._store.holding_slots()

    def offer(self, weight: float, clip: float | None = None) -> None:
        self._reducer.offer(weight, clip)

    def take_part(self) -> Timing:
        timing, now, began = Timing(), self._clock.now, self._clock.now()
        if refused := self._shared.spoilt_by():
            self._host.barrier()  # until all have read it
            return Timing(refused=refused)
        self._step += 1
        share = self._share()  # read first: other hosts may declare the next step already
        self._reducer.add_here()
        timing.reduce = now() - began
        if self._reducer.leads:
            payloads = self.sender.encode() if self._codec and not share.empty else None
            self._store.client.contribute(
                share, self._reducer.sums, timing, self._shared.parameters, payloads, self._codec
            )
        self.bytes_sent = timing.bytes_sent
        settled = now()
        self._host.barrier()
        timing.settle = now() - settled
        return timing

    def _share(self) -> Share:
        weight = float(self._shared.weights[self._here].sum())
        used = self._shared.used_by(self._here)
        clip = float(self._shared.clips.max()) or None
        empty = weight == 0.0 and all(mask is not None and not any(mask) for mask in used)
        return Share(self._step, self._leaders, self._here[0], weight, used, clip, empty)
