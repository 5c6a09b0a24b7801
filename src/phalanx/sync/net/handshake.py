"""Both sides prove the run's key before anything is parsed.

Fixed sizes and no choices: the server sends a greeting and a nonce, the client its nonce and the
proof that it has the key, the server its own proof. Fresh nonces on both sides make recordings
worthless, and different labels make it impossible to send a proof back to its author. (A mutual
challenge and response with HMAC-SHA256, RFC 2104.)
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from dataclasses import dataclass

from phalanx.core.errors import PeerLost
from phalanx.core.run_key import RunKey

PLAIN_GREETING = b"PHALANX1"
TLS_GREETING = b"PHALANXS"
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_BYTES = len(PLAIN_GREETING) + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
HANDSHAKE_SECONDS = 5.0


class Dropped(Exception):  # noqa: N818  (what happened, not what went wrong here)
    """The other side ended the connection before its part of the handshake.

    ``proved``: after it had our proof, so that is probably what it did not like.
    """

    def __init__(self, proved: bool) -> None:
        super().__init__("the other side ended the handshake")
        self.proved = proved


@dataclass(frozen=True)
class _Nonces:
    greeting: bytes
    server: bytes
    client: bytes

    def client_proof(self, key: RunKey) -> bytes:
        return _hmac(key, b"phalanx client" + self.greeting + self.server + self.client)

    def server_proof(self, key: RunKey) -> bytes:
        return _hmac(key, b"phalanx server" + self.greeting + self.client + self.server)


class ServerHandshake:
    """One connection that has proved nothing yet; never blocks.

    To the other side all failures look the same: the connection ends.
    """

    def __init__(self, connection: socket.socket, key: RunKey, greeting: bytes) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + HANDSHAKE_SECONDS
        self._key = key
        self._greeting = greeting
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._answer = b""
        connection.setblocking(False)
        self._send(greeting + self._nonce)

    def advance(self) -> bool:
        """Take what has come; True once the client has proved the key. ``OSError`` if it failed."""
        try:
            part = self.connection.recv(ANSWER_BYTES - len(self._answer))
        except BlockingIOError:
            return False
        if not part:
            raise ConnectionAbortedError
        self._answer += part
        if len(self._answer) < ANSWER_BYTES:
            return False
        nonces = _Nonces(self._greeting, self._nonce, self._answer[:NONCE_BYTES])
        if not hmac.compare_digest(self._answer[NONCE_BYTES:], nonces.client_proof(self._key)):
            raise ConnectionAbortedError
        self._send(nonces.server_proof(self._key))
        return True

    def _send(self, message: bytes) -> None:
        # A new connection's buffer holds far more than this: less sent means trouble.
        if self.connection.send(message) != len(message):
            raise ConnectionAbortedError


def prove_to_server(
    connection: socket.socket, key: RunKey, greeting: bytes, peer: str, seconds: float
) -> None:
    """The client's side, within ``seconds``; ``PeerLost`` if the server lacks the key."""
    deadline = time.monotonic() + min(seconds, HANDSHAKE_SECONDS)
    hello = _read(connection, HELLO_BYTES, deadline, proved=False)
    if not hello.startswith(greeting):
        raise _wrong_greeting(hello, peer)
    nonces = _Nonces(greeting, hello[len(greeting) :], secrets.token_bytes(NONCE_BYTES))
    _within(connection, deadline, proved=False)
    try:
        connection.sendall(nonces.client + nonces.client_proof(key))
    except OSError:
        raise Dropped(proved=False) from None
    proof = _read(connection, PROOF_BYTES, deadline, proved=True)
    if not hmac.compare_digest(proof, nonces.server_proof(key)):
        raise without_key(peer)


def without_key(peer: str) -> PeerLost:
    """The error for a server that does not know the run's key."""
    return PeerLost(
        f"{peer} does not have this run's key",
        "Give all members of the run the same PHALANX_KEY; perhaps another run has this port.",
    )


def _wrong_greeting(hello: bytes, peer: str) -> PeerLost:
    if hello.startswith((PLAIN_GREETING, TLS_GREETING)):
        return PeerLost(
            f"{peer} and this side disagree about TLS", "Give all members of the run one blueprint."
        )
    return PeerLost(f"{peer} is no member of a Phalanx run", "Look whether the port is right.")


def _read(connection: socket.socket, count: int, deadline: float, *, proved: bool) -> bytes:
    data = b""
    while len(data) < count:
        _within(connection, deadline, proved=proved)
        try:
            part = connection.recv(count - len(data))
        except OSError:
            part = b""
        if not part:
            raise Dropped(proved)
        data += part
    return data


def _within(connection: socket.socket, deadline: float, *, proved: bool) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise Dropped(proved)
    connection.settimeout(left)


def _hmac(key: RunKey, message: bytes) -> bytes:
    return hmac.digest(key.secret(), message, "sha256")
