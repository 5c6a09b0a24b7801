"""Who sits between members without the key cannot connect them otherwise than they think."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from channel_pairs import WAIT_SECONDS

from phalanx.core.errors import PeerLost, PhalanxError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.arena.remote.coordinator import Coordinator
from phalanx.sync.arena.remote.coordinator_messages import Hello, encode
from phalanx.sync.collective.links import open_links
from phalanx.sync.connect import connecting
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.dispatcher import Credentials, Dispatcher
from phalanx.sync.connect.handshake import ANSWER_BYTES, HELLO_BYTES, Introduction
from phalanx.sync.connect.listener import Listener
from phalanx.sync.store.remote.store_session import serve_stores

HERE = "127.0.0.1"
SERVER_ANSWER_BYTES = 96
BOTH = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


@BOTH
def test_two_wires_that_are_crossed_are_noticed(tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What participant 2 sends to 0 arrives at 1, and the other way round."""
    key = RunKey.new()
    listeners = [Listener(HERE, key, tls=tls) for _ in range(3)]
    dispatchers = [Dispatcher(listener) for listener in listeners]
    addresses = [(HERE, listener.port) for listener in listeners]
    crossed = {addresses[0][1]: addresses[1][1], addresses[1][1]: addresses[0][1]}
    in_crossing = threading.local()
    real = connecting.resolve

    def network(address: str, port: int) -> object:
        return real(address, crossed.get(port, port) if in_crossing.__dict__ else port)

    monkeypatch.setattr(connecting, "resolve", network)

    def take_part(rank: int) -> object:
        if rank == 2:
            in_crossing.here = True
        try:
            access = Credentials(key, HERE, dispatchers[rank], tls)
            links = open_links(rank, addresses, access, "all", timeout=1.0)
        except PeerLost as lost:
            return lost.cause
        for other in range(3):
            if rank == 2 and other != 2:
                links.send(other, torch.tensor([float(other)]))
        received = torch.zeros(1)
        if rank != 2:
            links.receive(2, received)
        return received.item()

    try:
        with ThreadPoolExecutor(3) as pool:
            results = list(pool.map(take_part, range(3)))
    finally:
        for listener in listeners:
            listener.close()
    assert all(isinstance(result, str) for result in results), f"it went unnoticed: {results}"
    assert "led to another member of the run" in str(results[2])


def test_tls_does_not_end_elsewhere_than_the_proof() -> None:
    """Somebody passes two proofs on as they are, and then crosses the connections."""
    key = RunKey.new()
    listener = Listener(HERE, key, tls=True)
    name = f"{HERE}:{listener.port}"
    entry = socket.create_server((HERE, 0))
    middle = threading.Thread(target=_cross_after_proof, args=(entry, listener.port), daemon=True)
    middle.start()

    def call(purpose: str) -> str:
        try:
            port, caller = entry.getsockname()[1], Introduction(purpose)
            channel = connect(HERE, port, key, caller, tls=True, timeout=3.0, name=name)
        except PeerLost as lost:
            return lost.cause
        channel.close()
        return f"{purpose} was let in"

    try:
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(call, ["one", "other"]))
        assert listener.accept(0.2) is None
    finally:
        entry.close()
        listener.close()
    assert all("a certificate that is not this connection's" in each for each in results), results


def _cross_after_proof(entry: socket.socket, port: int) -> None:
    members, servers = [], []
    for _ in range(2):
        member, server = entry.accept()[0], socket.create_connection((HERE, port))
        member.sendall(_take(server, HELLO_BYTES))
        server.sendall(_take(member, ANSWER_BYTES))
        member.sendall(_take(server, SERVER_ANSWER_BYTES))
        members.append(member)
        servers.append(server)
    for one, other in zip(members, reversed(servers), strict=True):
        for source, target in ((one, other), (other, one)):
            threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source, target:
        while data := source.recv(1 << 16):
            target.sendall(data)


def _take(connection: socket.socket, count: int) -> bytes:
    return connection.recv(count, socket.MSG_WAITALL)


@pytest.mark.parametrize(
    "caller", [Introduction(), Introduction("store", 0), Introduction("coordinator", 1)]
)
def test_the_coordinator_takes_a_process_only_for_who_it_proved_to_be(caller: Introduction) -> None:
    key = RunKey.new()
    listener = Listener(HERE, key, name="coordinator")
    ended = threading.Event()
    coordinator = threading.Thread(
        target=Coordinator(listener, 1).serve, args=(lambda: not ended.is_set(),)
    )
    coordinator.start()
    hello = encode(Hello(0, 1, "m", HERE, 1, "host"))
    try:
        wrong = connect(HERE, listener.port, key, caller, name="coordinator")
        wrong.send(hello)
        with pytest.raises(PeerLost):
            wrong.receive()
        right = connect(
            HERE, listener.port, key, Introduction("coordinator", 0), name="coordinator"
        )
        right.send(hello)
        assert right.receive()
        for channel in (wrong, right):
            channel.close()
    finally:
        ended.set()
        coordinator.join(WAIT_SECONDS)


def test_a_server_of_the_store_takes_connections_for_the_store_only() -> None:
    key = RunKey.new()
    listener = Listener(HERE, key)
    ended = threading.Event()
    serving = threading.Thread(target=serve_stores, args=(listener, ended.is_set))
    serving.start()
    try:
        wrong = connect(HERE, listener.port, key, Introduction("meeting", 1, 0))
        with pytest.raises(PhalanxError):
            wrong.receive()
        wrong.close()
    finally:
        ended.set()
        serving.join(WAIT_SECONDS)
        listener.close()
