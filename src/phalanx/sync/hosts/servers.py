"""The parameter servers of a run: separate processes, or ones started beside the workers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from phalanx.core.errors import InputError
from phalanx.plan.servers import Host, place_servers
from phalanx.sync.arena.remote.coordinator_messages import TrainingMember
from phalanx.sync.arena.remote.remote_arena import RemoteArena
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.dispatcher import Credentials
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.store.remote.store_messages import STORE
from phalanx.sync.store.remote.store_process import ServerProcess

START_SECONDS = 60.0


class Server(msgspec.Struct, frozen=True):
    machine: str
    address: str
    port: int

    @property
    def words(self) -> str:
        return f"the parameter server on {self.machine} ({self.address})"


@dataclass(frozen=True)
class ServerRequest:
    """How many parameter servers the user wants, or where, and the measured rates of links."""

    servers: int | Sequence[str] | None = None
    """How many servers, or the machines they run on."""
    links: Mapping[str, float] = field(default_factory=dict)
    """Bits per second between each machine and the others, where they were measured."""


@dataclass
class Servers:
    """One worker's view of the servers. Every worker asks for the same ones in the same order."""

    rank: int
    members: Sequence[TrainingMember]
    apart: Sequence[TrainingMember]
    access: Credentials
    notes: RemoteArena
    request: ServerRequest = field(default_factory=ServerRequest)

    def __post_init__(self) -> None:
        self._known: list[Server] = [Server(m.machine, m.address, m.port) for m in self.apart]
        self._channels: list[Channel] = []
        self._asked = itertools.count()
        self._children: list[ServerProcess] = []

    def channels(self, count: int | None) -> list[Channel]:
        """Return channels to ``count`` servers, or to as many as the plan chooses. Collective."""
        # The first worker chooses the servers' machines: other workers may know other rates.
        name = f"servers.{next(self._asked)}"
        if self.rank == 0:
            self.notes.put(name, msgspec.json.encode(self._machines(count)))
        machines = msgspec.json.decode(self.notes.get(name), type=list[str])
        self._start(machines)
        while len(self._channels) < len(machines):
            self._channels.append(self._open(len(self._channels)))
        return self._channels[: len(machines)]

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        for child in self._children:
            child.close()

    def _machines(self, count: int | None) -> list[str]:
        if not self.apart:
            return self._placed(count or self.request.servers)
        if (count or 1) > len(self.apart):
            raise InputError(
                f"servers={count}, but only {len(self.apart)} processes serve",
                "Start more with phalanx worker --serve, or remove servers=.",
            )
        return [m.machine for m in self.apart[: count or len(self.apart)]]

    def _placed(self, request: int | Sequence[str] | None) -> list[str]:
        machines: dict[str, int] = {}
        for member in self.members:
            machines[member.machine] = machines.get(member.machine, 0) + 1
        links = self.request.links
        return place_servers([Host(n, links.get(n), w) for n, w in machines.items()], request)

    def _start(self, machines: list[str]) -> None:
        """Start servers beside the workers, if no separate process serves."""
        missing, access, me = range(len(self._known), len(machines)), self.access, self.rank
        first = {m.machine: m for m in reversed(self.members)}
        everyone = [member.address for member in self.members]
        mine = {
            index: ServerProcess(access.key, access.address, tls=access.tls, members=everyone)
            for index in missing
            if first[machines[index]].rank == me
        }  # start all before waiting for any
        self._children += mine.values()
        for index, child in mine.items():
            server = Server(machines[index], access.address, child.port)
            self.notes.put(f"server.{index}", msgspec.json.encode(server))
        for index in missing:
            found = self.notes.get(f"server.{index}")
            self._known.append(msgspec.json.decode(found, type=Server))

    def _open(self, index: int) -> Channel:
        server = self._known[index]
        channel = connect(
            server.address,
            server.port,
            self.access.key,
            Introduction(STORE, self.rank, index),
            tls=self.access.tls,
            timeout=START_SECONDS,
            source=self.access.address,
        )
        channel.peer = server.words
        return channel
