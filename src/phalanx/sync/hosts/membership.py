"""Makes a process a member of a training on several machines, and finds the other members."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Sequence

from phalanx.agent.machine.facts import machine_id
from phalanx.core.errors import PeerLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.arena import memfd
from phalanx.sync.arena.remote.coordinator_messages import (
    COORDINATOR,
    Hello,
    Welcome,
    encode,
    reply_decoder,
)
from phalanx.sync.arena.remote.direct_barrier import MOST_WORKERS, DirectBarrier
from phalanx.sync.arena.remote.remote_arena import RemoteArena
from phalanx.sync.arena.shm_arena import ShmArena
from phalanx.sync.collective.links import open_channels
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.dispatcher import Credentials, Dispatcher
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.connect.listener import Listener
from phalanx.sync.hosts.hosts import RemoteHosts
from phalanx.sync.hosts.servers import ServerRequest, Servers

JOIN_SECONDS = 600.0
"""Seconds for all processes to be there: the first one may prepare or download data before it
joins. The controller notices processes that have died sooner."""


def host_id() -> str:
    """Return the same text for processes that can share memory and descriptors: they have one
    kernel, one user, one process table, one network."""
    return f"{machine_id()}.{os.getuid()}"


def greet(
    coordinator: tuple[str, int],
    key: RunKey,
    hello: Hello,
    *,
    tls: bool = False,
    timeout: float = JOIN_SECONDS,
) -> tuple[Channel, Welcome]:
    """Say hello to the coordinator, and wait until everybody is there."""
    address, port = coordinator
    channel = connect(
        address, port, key, Introduction(COORDINATOR, hello.process), tls=tls, timeout=timeout,
        source=hello.address, name=COORDINATOR,
    )  # fmt: skip
    channel.peer = f"the first machine ({address})"
    channel.send(encode(hello))
    if not channel.poll(timeout):
        channel.close()
        raise PeerLost(
            f"not all of the {hello.processes} processes connected within {timeout:.0f} seconds",
            "See the other logs; every process needs the same key and address of process 0.",
        )
    header, _ = channel.receive()
    welcome = reply_decoder.decode(header)
    if not isinstance(welcome, Welcome):
        raise PeerLost("another process was lost before all had connected", "See its log.")
    for member in (*welcome.workers, *welcome.servers):
        if member.address == address:
            channel.peer = f"the first machine, {member.machine} ({address})"
    return channel, welcome


def become_worker(
    coordinator: tuple[str, int],
    key: RunKey,
    *,
    process: int,
    processes: int,
    machine: str,
    address: str,
    host: str | None = None,
    tls: bool = False,
    timeout: float = JOIN_SECONDS,
    request: ServerRequest | None = None,
    members: Sequence[str] = (),
) -> RemoteArena:
    """Join the training as a worker. Collective: every process does so."""
    listener = Listener(address, key, tls=tls, members=members)
    hello = Hello(process, processes, machine, address, listener.port, host or host_id())
    channel, welcome = greet(coordinator, key, hello, tls=tls, timeout=timeout)
    listener.expect_from(w.address for w in welcome.workers)
    remote = RemoteArena(channel, welcome.rank, len(welcome.workers))
    remote.set_clock()
    access = Credentials(key, address, Dispatcher(listener), tls)
    servers = Servers(
        welcome.rank, welcome.workers, welcome.servers, access, remote, request or ServerRequest()
    )
    hosts = RemoteHosts(welcome.rank, welcome.workers, access, servers, welcome.run)
    remote.hosts = hosts
    remote.host = _host_arena(remote, hosts.here, key)
    if len(welcome.workers) <= MOST_WORKERS:
        channels = open_channels(
            welcome.rank,
            [(w.address, w.port) for w in welcome.workers],
            access,
            f"{welcome.run}.meeting",
            timeout=timeout,
            names=[f"{w.machine} ({w.address})" for w in welcome.workers],
        )
        remote.direct = DirectBarrier(channels, remote.check)
    return remote


def _host_arena(remote: RemoteArena, here: Sequence[int], key: RunKey) -> ShmArena:
    """Open the memory of this machine's workers. It has no name: workers open it through the
    leader's process, as the kernel permits the same user, and check that it is of this run."""
    name, local = f"memory.{here[0]}", here.index(remote.rank)
    proof = hmac.digest(key.secret(), f"phalanx {name}".encode(), "sha256")
    if local == 0:
        descriptor = memfd.create(len(here), proof)
        remote.put(name, f"{os.getpid()} {descriptor}".encode())
    else:
        end = time.monotonic() + JOIN_SECONDS
        descriptor = memfd.opened(remote.get(name, lambda: time.monotonic() > end), proof)
    arena = ShmArena(descriptor, local, len(here))
    arena.watch = remote.check
    return arena
