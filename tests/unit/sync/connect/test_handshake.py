"""Who gets in: members of the run, and nobody else."""

from __future__ import annotations

import contextlib
import hmac
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from channel_pairs import WAIT_SECONDS

from phalanx.core.errors import InputError, PeerLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.handshake import ANSWER_BYTES, HELLO_BYTES, PLAIN_GREETING, Introduction
from phalanx.sync.connect.listener import Listener
from phalanx.sync.connect.tls import Identity

BOTH = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


@BOTH
def test_another_key_gets_nobody_in(tls: bool) -> None:
    listener = Listener("127.0.0.1", RunKey.new(), tls=tls)
    try:
        with pytest.raises(PeerLost, match="does not have this run's key"):
            connect("127.0.0.1", listener.port, RunKey.new(), tls=tls)
        assert listener.accept(0.05) is None
    finally:
        listener.close()


@pytest.mark.parametrize("server", [False, True])
def test_tls_and_plain_do_not_mix(server: bool) -> None:
    key = RunKey.new()
    listener = Listener("127.0.0.1", key, tls=server)
    try:
        with pytest.raises(PeerLost, match="disagree about TLS"):
            connect("127.0.0.1", listener.port, key, tls=not server)
    finally:
        listener.close()


def test_a_recorded_handshake_is_worth_nothing() -> None:
    """All that an eavesdropper saw of a member that got in, sent again, byte for byte."""
    key = RunKey.new()
    listener = Listener("127.0.0.1", key)
    try:
        recorded = _answer_to(_hello(opened := _open(listener.port)), key, listener.port)
        opened.sendall(recorded)
        accepted = listener.accept(WAIT_SECONDS)
        assert accepted.introduction == Introduction("some purpose", 3, 4)
        assert len(opened.recv(128)) == 96
        again = _open(listener.port)
        _hello(again)
        again.sendall(recorded)
        assert again.recv(64) == b""
        assert listener.accept(0.05) is None
        opened.close()
        again.close()
    finally:
        listener.close()


def test_a_proof_sent_back_to_its_author_is_no_proof() -> None:
    """A stranger that answers a member with the member's own proof."""
    lost = pytest.raises(PeerLost, match="does not have this run's key")
    with _impostor(lambda hello, answer: bytes(64) + answer[-32:]) as port, lost:
        connect("127.0.0.1", port, RunKey.new())


def test_another_service_is_told_apart() -> None:
    lost = pytest.raises(PeerLost, match="not a member of a Phalanx run")
    with _impostor(lambda hello, answer: b"", greeting=b"SSH-2.0-") as port, lost:
        connect("127.0.0.1", port, RunKey.new())


def test_a_server_that_says_nothing_is_given_up() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(PeerLost, match="cannot be reached"):
        connect("127.0.0.1", silent.getsockname()[1], RunKey.new(), timeout=0.5)


def test_connecting_waits_for_a_listener_to_come() -> None:
    key = RunKey.new()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(connect("127.0.0.1", port, key)))
    thread.start()
    time.sleep(0.3)
    listener = Listener("127.0.0.1", key, port=port)
    try:
        assert listener.accept(WAIT_SECONDS) is not None
        thread.join(WAIT_SECONDS)
        assert len(found) == 1
    finally:
        listener.close()


def test_nobody_there_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(PeerLost, match=r"127.0.0.1:\d+ cannot be reached \(connection refused\)"):
        connect("127.0.0.1", port, RunKey.new(), timeout=0.2)


def test_an_address_that_is_not_ours_is_the_users_mistake() -> None:
    key = RunKey.new()
    with pytest.raises(InputError, match=r"cannot listen on 192\.0\.2\.1"):
        Listener("192.0.2.1", key)
    with pytest.raises(InputError, match=r"from 192\.0\.2\.1"):
        connect("127.0.0.1", 9, key, source="192.0.2.1")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", ""])
def test_nothing_listens_on_every_address(address: str) -> None:
    with pytest.raises(InputError):
        Listener(address, RunKey.new())


def test_tls_does_not_trust_who_only_relayed_the_proof() -> None:
    """One who passes the proofs on between two members still has not the run's certificate."""
    key = RunKey.new()
    listener = Listener("127.0.0.1", key, tls=True)
    entry = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_relay_then_pretend, args=(entry, listener.port))
    thread.start()
    try:
        with pytest.raises(PeerLost, match="certificate that is not this connection's"):
            name = f"127.0.0.1:{listener.port}"
            connect("127.0.0.1", entry.getsockname()[1], key, tls=True, name=name)
        assert listener.accept(0.05) is None
    finally:
        entry.close()
        thread.join(WAIT_SECONDS)
        listener.close()


def _relay_then_pretend(entry: socket.socket, port: int) -> None:
    member, _ = entry.accept()
    with member, _open(port) as server:
        member.sendall(_take(server, HELLO_BYTES))
        server.sendall(_take(member, ANSWER_BYTES))
        member.sendall(_take(server, 96))
        secured = Identity(RunKey.new(), b"").wrap(member, server=True)
        with secured:
            try:
                secured.do_handshake()
            except OSError:
                return


def _open(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)


def _hello(connection: socket.socket) -> bytes:
    return _take(connection, HELLO_BYTES)


def _take(connection: socket.socket, count: int) -> bytes:
    return connection.recv(count, socket.MSG_WAITALL)


def _answer_to(hello: bytes, key: RunKey, port: int) -> bytes:
    """Written out here once more, so that the protocol cannot change by accident."""
    name = f"127.0.0.1:{port}".encode().ljust(64, b"\0")
    said = b"n" * 32 + b"some purpose".ljust(64, b"\0") + name + struct.pack("<qq", 3, 4)
    return said + hmac.digest(key.secret(), b"phalanx client" + hello + said, "sha256")


@contextlib.contextmanager
def _impostor(
    reply: Callable[[bytes, bytes], bytes], greeting: bytes = PLAIN_GREETING
) -> Iterator[int]:
    """A server without the key that greets, and answers a proof with ``reply``."""
    entry = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            member, _ = entry.accept()
            with member:
                hello = greeting + b"s" * 32
                member.sendall(hello)
                member.sendall(reply(hello, _take(member, ANSWER_BYTES)))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield entry.getsockname()[1]
    finally:
        entry.close()
        thread.join(WAIT_SECONDS)
