"""The machines of a training, as one worker sees them: who is where, and how to reach them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from phalanx.sync.arena.arena import Droppable
from phalanx.sync.arena.remote.coordinator_messages import TrainingMember
from phalanx.sync.collective.collective import Collective, measured_latency
from phalanx.sync.collective.links import open_channels, open_links
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.dispatcher import Credentials
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.hosts.servers import Servers

OPEN_SECONDS = 60.0


class RemoteHosts:
    """Implements ``sync.arena.arena.Hosts``, which says what each method does, over TCP."""

    def __init__(
        self,
        rank: int,
        members: Sequence[TrainingMember],
        access: Credentials,
        servers: Servers,
        run: str,
    ) -> None:
        self._run = run
        self._rank, self._members, self._access, self._servers = rank, members, access, servers
        me = members[rank]
        self.machine = me.machine
        self.name = f"{me.machine} ({me.address})"
        self.here = tuple(m.rank for m in members if m.host == me.host)
        self._names = (f"{run}.{number}" for number in itertools.count())
        self._opened: list[Collective] = []
        self._everyone: Collective | None = None
        self.stores: list[Droppable] = []

    def local(self, ranks: Iterable[int]) -> list[int]:
        return [self.here.index(rank) for rank in ranks if rank in self.here]

    def leaders(self, ranks: Iterable[int]) -> list[int]:
        first: dict[str, int] = {}
        for rank in sorted(ranks):
            first.setdefault(self._members[rank].host, rank)
        return list(first.values())

    def collective(
        self, tag: str, ranks: Iterable[int], topology: str | None = None
    ) -> Collective | None:
        leaders = self.leaders(ranks)
        if len(leaders) == 1:
            return None
        chosen, rank = [self._members[rank] for rank in leaders], leaders.index(self._rank)
        addresses = [(m.address, m.port) for m in chosen]
        names = [f"{m.machine} ({m.address})" for m in chosen]

        def open_more(name: str) -> dict[int, Channel]:
            full = f"{self._run}.{tag}.{name}"
            return open_channels(
                rank, addresses, self._access, full, timeout=OPEN_SECONDS, names=names
            )

        links = open_links(rank, addresses, self._access, f"{self._run}.{tag}", names=names)
        made = Collective(links, topology, measured_latency(links), open_more=open_more)
        self._opened.append(made)
        return made

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        if self._everyone is None:
            self._everyone = self.collective("everyone", range(len(self._members)))
        if self._everyone is None:
            return
        for tensor in tensors:
            flat = tensor.detach().reshape(-1).cpu().contiguous()
            self._everyone.broadcast([flat])
            with torch.no_grad():
                tensor.copy_(flat.view(tensor.shape))

    def channels_to_servers(self, count: int | None) -> list[Channel]:
        return self._servers.channels(count)

    def check(self) -> None:
        self._servers.notes.check()

    def channels_with_first(self) -> dict[int, Channel]:
        tag = f"first.{self.new_name()}"
        return _channels_with_first(self._rank, self._members, self._access, tag)

    def new_name(self) -> str:
        return next(self._names)

    def forget(self) -> None:
        for collective in self._opened:
            collective.close()
        self._opened, self._everyone = [], None
        if self._rank == 0:
            for store in self.stores:
                store.drop()
        self.stores = []

    def close(self) -> None:
        self.forget()
        self._servers.close()


def _channels_with_first(
    rank: int, members: Sequence[TrainingMember], access: Credentials, tag: str
) -> dict[int, Channel]:
    """Return channels by rank: the first worker's to those of other hosts, and theirs to it."""
    first, me = members[0], members[rank]
    far = [member for member in members if member.host != first.host]
    if rank == 0:
        deadline = time.monotonic() + OPEN_SECONDS
        expect = access.dispatcher.expect
        return {m.rank: expect(Introduction(tag, m.rank, 0), deadline, _name(m)) for m in far}
    if me.host == first.host:
        return {}
    channel = connect(
        first.address, first.port, access.key, Introduction(tag, rank, 0), tls=access.tls,
        timeout=OPEN_SECONDS, source=access.address,
    )  # fmt: skip
    channel.peer = _name(first)
    return {0: channel}


def _name(member: TrainingMember) -> str:
    return f"worker {member.rank} on {member.machine} ({member.address})"
