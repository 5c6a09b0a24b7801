"""A worker's view of the parameter store when its servers are on several machines.

Each host has one copy of the parameters, which its workers share: a push or a pull refreshes
it, and models on a CPU compute with it in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from phalanx.policies.sample_assignment import Applied
from phalanx.sync.arena.arena import Locks, shard_lock
from phalanx.sync.codec.encoding import Sender
from phalanx.sync.reduce.reducer import Reducer
from phalanx.sync.state.replica import Masks
from phalanx.sync.state.shared_state import State
from phalanx.sync.store.push_buffers import PushBuffers
from phalanx.sync.store.remote.store_client import StoreClient
from phalanx.sync.strategy import StrategyContext, Timing


class RemoteStore:
    def __init__(self, context: StrategyContext, servers: int | None) -> None:
        hosts = context.arena.hosts
        assert hosts is not None
        self._arena, self._host, self._shared = context.arena, context.arena.host, context.shared
        self._replica, self._encoding = context.replica, context.encoding
        self._team, self._hosts, self._clock = context.team, hosts, context.clock
        channels = hosts.channels_to_servers(servers)
        self._locks = [self._host.lock(shard_lock(i)) for i in range(len(channels))]
        self._versions = self._host.region(f"{context.tag}.copies", len(channels), torch.int64)
        codec = context.encoding.codec
        self.client = StoreClient(
            channels, self._locks, hosts.new_name(), context.replica.optimizer,
            context.replica.layouts, context.clock, [codec] if codec else [],
            self._versions, hosts.check,
        )  # fmt: skip
        self.client.open(hosts.name, [self._arena.rank])
        hosts.stores.append(self.client)
        self._team_sender: Sender | None = None

    # -- the whole state ---------------------------------------------------------------------

    def begin(self) -> None:
        self._arena.barrier()  # no request may reach a store that is about to be replaced
        if self._arena.rank == 0:
            self.client.load(self._shared.export_whole())
        if self._host.rank == 0:
            self._versions.fill_(-1)
        if self._team_sender is not None:
            self._team_sender.begin(self._shared)
        self._arena.barrier()

    def settle(self) -> None:
        if self._host.rank == 0:
            self._shared.import_whole(self.client.save())
        self._arena.barrier()

    @contextmanager
    def holding_slots(self) -> Iterator[None]:
        with self._arena.lock(Locks.SLOTS):  # workers of a host share the memory of slots
            self._shared.import_slots(self.client.save())
            yield

    # -- pushes ------------------------------------------------------------------------------

    def make_buffers(self) -> PushBuffers:
        return PushBuffers(self._replica, self.client.layouts, self._encoding)

    def encode(self, buffers: PushBuffers) -> int:
        """Encode the next push; returns 0, because its bytes are counted when they are sent."""
        buffers.payloads = buffers.sender.encode() if self._encoding.codec else None
        return 0

    def push_buffers(
        self,
        buffers: PushBuffers,
        used: Masks,
        rate_factor: float,
        timing: Timing,
        pull: Sequence[Tensor] | None = None,
    ) -> None:
        into = () if pull is None else self._shared.parameters
        self.client.push(
            buffers.flats, used, rate_factor, timing, into, buffers.payloads, self._encoding.codec,
            (self._arena.rank, buffers.total),
        )  # fmt: skip
        self._copy(pull or ())

    def fence(self, rank: int) -> Applied:
        found = self.client.fence(rank)
        return Applied(min(found), max(found))

    def push_reduced(
        self, reducer: Reducer, used: Masks, rate_factor: float, timing: Timing
    ) -> None:
        """Push the team's sum from one member; other hosts pull the result by ``pull_reduced``."""
        if self._team.members[0] not in self._hosts.here:
            return
        reducer.wait_here()  # until all have scaled their slices of the sum
        if not reducer.leads:
            return
        payloads = self._team_sender.encode() if self._team_sender else None
        self.client.push(
            reducer.sums, used, rate_factor, timing, self._shared.parameters, payloads,
            self._encoding.codec,
        )  # fmt: skip

    def push_for(self, reducer: Reducer) -> None:
        """Prepare to push this team's sums: a codec keeps state for each of their streams."""
        if self._encoding.codec and reducer.leads and self._team.members[0] in self._hosts.here:
            named = [(f"push.{s[0]}", *s[1:]) for s in self.client.streams(reducer.sums)]
            self._team_sender = self._encoding.sender(named)

    # -- pulls -------------------------------------------------------------------------------

    def pull(self, into: Sequence[Tensor]) -> None:
        self.client.pull(self._shared.parameters)
        self._copy(into)

    def pull_newer(self, into: Sequence[Tensor], taken: list[int]) -> list[int]:
        self.client.pull(self._shared.parameters)
        versions: list[int] = self._versions.tolist()
        if versions != taken:
            self._copy(into)
        return versions

    def pull_reduced(self, reducer: Reducer, into: Sequence[Tensor]) -> None:
        """Fetch new parameters: the host that pushed has them; on others one member pulls them."""
        if self._team.members[0] not in self._hosts.here:
            if reducer.leads:
                self.client.pull(self._shared.parameters)
            reducer.wait_here()
        self._copy(into)

    def _copy(self, into: Sequence[Tensor]) -> None:
        """Copy the host's parameters to ``into``, each server's part under its lock."""
        for server, lock in enumerate(self._locks if into else ()):
            with lock:
                copies = []
                for flat, ours, layout in zip(
                    into, self._shared.parameters, self.client.layouts, strict=True
                ):
                    part = slice(*layout.bounds(server))
                    copies.append((flat[part], ours[part]))
                self._replica.staging.fetch(copies)

    # -- checkpoints -------------------------------------------------------------------------

    def export_private(self) -> State:
        return self._team_sender.export_state() if self._team_sender else {}

    def import_private(self, state: State) -> None:
        if self._team_sender is not None:
            self._team_sender.import_state(state)
