"""Both sides prove the run's key, and say who they are, before anything else is parsed.

Fixed sizes and no choices: the server sends a greeting and a nonce; the client its nonce, what the
connection is for, who calls, whom it calls, and its proof; the server its own name and proof. Fresh
nonces on both sides make recordings worthless, and different labels make it impossible to send a
proof back to its author. Both proofs cover all messages, so both sides notice a connection that was
redirected. (A mutual challenge and response with HMAC-SHA256, RFC 2104.)
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass

from phalanx.core.errors import PeerLost
from phalanx.core.run_folder.run_key import RunKey

PLAIN_GREETING = b"PHALANX2"
TLS_GREETING = b"PHALTLS2"
NONCE_BYTES = 32
PROOF_BYTES = 32
NAME_BYTES = 64
HELLO_BYTES = len(PLAIN_GREETING) + NONCE_BYTES
_INTRODUCTION = struct.Struct(f"<{NAME_BYTES}s{NAME_BYTES}sqq")
ANSWER_BYTES = NONCE_BYTES + _INTRODUCTION.size + PROOF_BYTES
HANDSHAKE_SECONDS = 5.0


class Dropped(Exception):  # noqa: N818  (what happened, not what went wrong here)
    """The other side ended the connection before its part of the handshake.

    ``refused``: it closed in good order after our proof had been sent, so it rejected the proof.
    """

    def __init__(self, refused: bool) -> None:
        super().__init__("the other side ended the handshake")
        self.refused = refused


@dataclass(frozen=True)
class Introduction:
    """The purpose of a connection, and the ranks of both sides in the group of that purpose."""

    purpose: str = ""
    caller: int = -1
    callee: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "purpose", _fitting(self.purpose))


@dataclass(frozen=True)
class _Transcript:
    """All that was said before the proofs; every part has a fixed size."""

    greeting: bytes
    server: bytes
    client: bytes
    introduction: bytes

    def client_proof(self, key: RunKey) -> bytes:
        return _hmac(key, b"phalanx client" + self._said())

    def server_proof(self, key: RunKey, name: bytes) -> bytes:
        return _hmac(key, b"phalanx server" + self._said() + name)

    def binding(self) -> bytes:
        """A value of this connection alone, to which TLS on top of it is tied."""
        return hashlib.sha256(self._said()).digest()

    def _said(self) -> bytes:
        return self.greeting + self.server + self.client + self.introduction


class ServerHandshake:
    """The server's side of one new connection; it never blocks.

    To those without the key all failures look the same: the connection ends.
    """

    def __init__(self, connection: socket.socket, key: RunKey, greeting: bytes, name: str) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + HANDSHAKE_SECONDS
        self.introduction = Introduction()
        self.binding = b""
        self._key, self._greeting, self._name = key, greeting, _padded(name)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._answer = b""
        connection.setblocking(False)
        self._send(greeting + self._nonce)

    def advance(self) -> bool:
        """Read what has come; return whether the client proved the key, or raise OSError."""
        try:
            part = self.connection.recv(ANSWER_BYTES - len(self._answer))
        except BlockingIOError:
            return False
        if not part:
            raise ConnectionAbortedError
        self._answer += part
        if len(self._answer) < ANSWER_BYTES:
            return False
        nonce, said = self._answer[:NONCE_BYTES], self._answer[NONCE_BYTES:-PROOF_BYTES]
        transcript = _Transcript(self._greeting, self._nonce, nonce, said)
        if not hmac.compare_digest(self._answer[-PROOF_BYTES:], transcript.client_proof(self._key)):
            raise ConnectionAbortedError
        self._send(self._name + transcript.server_proof(self._key, self._name))
        purpose, name, caller, callee = _INTRODUCTION.unpack(said)
        if name != self._name:  # it called another, and our answer has told it our name
            raise ConnectionAbortedError
        self.introduction = Introduction(_text(purpose), caller, callee)
        self.binding = transcript.binding()
        return True

    def _send(self, message: bytes) -> None:
        # A new connection's buffer holds far more than this: less sent means trouble.
        if self.connection.send(message) != len(message):
            raise ConnectionAbortedError


@dataclass(frozen=True)
class Caller:
    """The client's side: who calls, and the ``name`` of the listener that is to answer."""

    key: RunKey
    greeting: bytes
    introduction: Introduction
    name: str

    def prove(self, connection: socket.socket, peer: str, seconds: float) -> bytes:
        """Do the handshake and return its binding, or raise ``PeerLost`` for a wrong server."""
        deadline = time.monotonic() + min(seconds, HANDSHAKE_SECONDS)
        hello = _read(connection, HELLO_BYTES, deadline, proved=False)
        if not hello.startswith(self.greeting):
            raise _wrong_greeting(hello, peer)
        given, name = self.introduction, _padded(self.name)
        said = _INTRODUCTION.pack(given.purpose.encode(), name, given.caller, given.callee)
        nonce = secrets.token_bytes(NONCE_BYTES)
        transcript = _Transcript(self.greeting, hello[len(self.greeting) :], nonce, said)
        _within(connection, deadline)
        try:
            connection.sendall(nonce + said + transcript.client_proof(self.key))
        except OSError:
            raise Dropped(refused=False) from None
        answer = _read(connection, NAME_BYTES + PROOF_BYTES, deadline, proved=True)
        other, proof = answer[:NAME_BYTES], answer[NAME_BYTES:]
        if not hmac.compare_digest(proof, transcript.server_proof(self.key, other)):
            raise without_key(peer)
        if other != name:
            raise PeerLost(
                f"the connection to {peer} led to another member of the run, {_text(other)}",
                "Check for a proxy between the machines, and whether an address is given twice.",
            )
        return transcript.binding()


def without_key(peer: str) -> PeerLost:
    """The error for a server that does not know the run's key."""
    return PeerLost(
        f"{peer} does not have this run's key",
        "Give all members of the run the same PHALANX_KEY; another run may be using this port.",
    )


def _wrong_greeting(hello: bytes, peer: str) -> PeerLost:
    if hello.startswith((PLAIN_GREETING, TLS_GREETING)):
        return PeerLost(
            f"{peer} and this side disagree about TLS", "Give all members the same blueprint."
        )
    return PeerLost(
        f"{peer} is not a member of a Phalanx run of this version",
        "Check the port, and that all machines have the same version of Phalanx.",
    )


def _read(connection: socket.socket, count: int, deadline: float, *, proved: bool) -> bytes:
    data = b""
    while len(data) < count:
        _within(connection, deadline)
        try:
            part = connection.recv(count - len(data))
        except OSError:  # reset, or no answer in time: that says nothing about our proof
            raise Dropped(refused=False) from None
        if not part:
            raise Dropped(refused=proved)
        data += part
    return data


def _within(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise Dropped(refused=False)
    connection.settimeout(left)


def _fitting(text: str) -> str:
    """Return ``text``, or its hash if it is too long."""
    long = len(text.encode()) > NAME_BYTES
    return hashlib.sha256(text.encode()).hexdigest() if long else text


def _padded(text: str) -> bytes:
    return _fitting(text).encode().ljust(NAME_BYTES, b"\0")


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")


def _hmac(key: RunKey, message: bytes) -> bytes:
    return hmac.digest(key.secret(), message, "sha256")
