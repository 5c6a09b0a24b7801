"""Strangers at a port of a run: what they try, and that a listener lives through it.

``attack`` needs nothing but an address, so any port of a running training can be its target.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import random
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable

GREETING_BYTES = 8
HELLO_BYTES = GREETING_BYTES + 32
ANSWER_BYTES = 32 + 144 + 32
"""A nonce, an introduction, a proof."""
# Connections that attackers leave open and silent, at most; more than a listener keeps.
HELD_OPEN = 100
STEP_SECONDS = 10.0


class Attacker:
    """Tries one thing after the other; what became of each is counted."""

    def __init__(self, address: str, port: int, seed: int) -> None:
        self._target = (address, port)
        self._random = random.Random(seed)
        self._held: deque[socket.socket] = deque()
        self._recorded = b""
        self.counts: Counter[str] = Counter()
        self.ways: dict[str, Callable[[socket.socket], None]] = {
            "wrong key": self._wrong_key,
            "replayed": self._replayed,
            "random bytes": self._random_bytes,
            "truncated": self._truncated,
            "oversized": self._oversized,
            "slow": self._slow,
            "half-open": self._half_open,
            "silent": self._hold,
            "reset": self._reset,
            "web request": self._web_request,
            "tls hello": self._tls_hello,
        }

    def try_once(self) -> None:
        """One connection, one random way to misuse it."""
        way = self._random.choice(list(self.ways))
        self.counts[way] += 1
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.settimeout(STEP_SECONDS)
        try:
            connection.connect(self._target)
            self.ways[way](connection)
        except TimeoutError:
            self.counts["no answer in time"] += 1
        except OSError:
            self.counts["turned away"] += 1
        finally:
            if connection not in self._held:
                connection.close()

    def nudge_slow_ones(self) -> None:
        """One more byte on each connection that is held open: the slow loris."""
        for connection in self._held:
            with contextlib.suppress(OSError):
                connection.send(b"x", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def leave(self) -> None:
        """Close what is still open."""
        while self._held:
            self._held.popleft().close()

    def _wrong_key(self, connection: socket.socket) -> None:
        hello = _read(connection, HELLO_BYTES)
        said = self._random.randbytes(ANSWER_BYTES - 32)
        message = b"phalanx client" + hello + said
        proof = hmac.digest(self._random.randbytes(32), message, hashlib.sha256)
        self._recorded = said + proof
        connection.sendall(self._recorded)
        self._count_welcome(connection)

    def _replayed(self, connection: socket.socket) -> None:
        _read(connection, HELLO_BYTES)
        connection.sendall(self._recorded or bytes(ANSWER_BYTES))
        self._count_welcome(connection)

    def _random_bytes(self, connection: socket.socket) -> None:
        connection.sendall(self._random.randbytes(self._random.randint(ANSWER_BYTES, 5000)))
        self._count_welcome(connection, after=HELLO_BYTES)

    def _truncated(self, connection: socket.socket) -> None:
        connection.sendall(self._random.randbytes(self._random.randint(0, ANSWER_BYTES - 1)))

    def _oversized(self, connection: socket.socket) -> None:
        connection.sendall(struct.pack("<IQ", 2**32 - 1, 2**64 - 1) * 20)
        self._count_welcome(connection, after=HELLO_BYTES)

    def _slow(self, connection: socket.socket) -> None:
        connection.sendall(self._random.randbytes(1))
        self._hold(connection)

    def _half_open(self, connection: socket.socket) -> None:
        connection.shutdown(socket.SHUT_WR)
        self._hold(connection)

    def _hold(self, connection: socket.socket) -> None:
        self._held.append(connection)
        if len(self._held) > HELD_OPEN:
            self._held.popleft().close()

    def _reset(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _web_request(self, connection: socket.socket) -> None:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: " + b"a" * 200)
        self._count_welcome(connection, after=HELLO_BYTES)

    def _tls_hello(self, connection: socket.socket) -> None:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600))
        self._count_welcome(connection, after=HELLO_BYTES)

    def _count_welcome(self, connection: socket.socket, after: int = 0) -> None:
        """A listener owes strangers nothing but the end: more bytes are counted as a welcome."""
        got = b""
        while len(got) <= after and (part := connection.recv(4096)):
            got += part
        if len(got) > after:
            self.counts["welcomed"] += 1


def attack(address: str, port: int, tries: int, seed: int) -> Counter[str]:
    """Try ``tries`` times to get in or do harm; counts each way, and what came of it.

    ``welcomed`` and ``no answer in time`` must not be among the keys.
    """
    attacker = Attacker(address, port, seed)
    try:
        for number in range(tries):
            attacker.try_once()
            if number % 20 == 0:
                attacker.nudge_slow_ones()
    finally:
        attacker.leave()
    return attacker.counts


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionAbortedError
        data += part
    return data
