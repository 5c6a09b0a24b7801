"""Accepts connections of callers that prove the run's key, and ends all others.

One thread looks after all connections that have proved nothing yet. None of them can block another,
each has five seconds in all, and the lobby says who has to leave when there are too many, so that
strangers cannot keep a member out.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import select
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.core.hosts_settings import endpoint
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import listening
from phalanx.sync.connect.handshake import PLAIN_GREETING, TLS_GREETING, ServerHandshake

_AT_ONCE = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class ListenerIdentity:
    """What callers have to know of a listener: its key, its name, and whether it speaks TLS."""

    key: RunKey
    name: str
    tls: bool


class PendingConnection:
    """A connection not yet proved. It never blocks; a failure is an ``OSError``, and ends it."""

    def __init__(self, connection: socket.socket, listener: ListenerIdentity, source: str) -> None:
        self.connection = connection
        self.source = source
        """The source by whose quota it is counted."""
        self.proved = False
        self.events = selectors.EVENT_READ
        self._listener = listener
        greeting = TLS_GREETING if listener.tls else PLAIN_GREETING
        self._proof = ServerHandshake(connection, listener.key, greeting, listener.name)
        self.deadline = self._proof.deadline
        self._secured: ssl.SSLSocket | None = None

    def advance(self) -> Channel | None:
        """Read what has come; return the channel once everything is proved."""
        if self._secured is None:
            if not self._proof.advance():
                return None
            self.proved = True
            if not self._listener.tls:
                return self._channel(Channel(self.connection, describe(self.connection)))
            from phalanx.sync.connect.tls import Identity

            identity = Identity(self._listener.key, self._proof.binding)
            self._secured = identity.wrap(self.connection, server=True)
            self.connection = self._secured
        return self._secure(self._secured)

    def turn_away(self) -> None:
        """Reset the connection, for want of room; a refused one just ends. A member tries again."""
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.connection.close()

    def _secure(self, secured: ssl.SSLSocket) -> Channel | None:
        from phalanx.sync.connect.tls import TlsChannel

        try:
            secured.do_handshake()
        except ssl.SSLWantReadError:
            self.events = selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            self.events = selectors.EVENT_WRITE
        else:
            return self._channel(TlsChannel(secured, describe(secured)))
        return None

    def _channel(self, channel: Channel) -> Channel:
        channel.introduction = self._proof.introduction
        return channel


def describe(connection: socket.socket) -> str:
    """Return the other side's address and port, for messages."""
    address, port = connection.getpeername()[:2]
    return endpoint(address, port)


MAX_PENDING = 128
QUOTA = 32
MEMBER_QUOTA = 128
_NETWORK_BITS = 64
BACKLOG = 512
_REST_SECONDS = 0.05


class Lobby:
    """Keeps connections that have proved nothing yet, by number, and chooses which to close when
    there are too many.

    Addresses of the run's own machines have places of their own, which others cannot take. All
    others share ``MAX_PENDING``, of which a source gets at most ``QUOTA``. When all are taken, a
    random one of the source with the most is closed: the oldest could be a member far away.
    """

    def __init__(self) -> None:
        self.pending: dict[int, PendingConnection] = {}
        self._members: frozenset[str] = frozenset()

    def reserve(self, addresses: Iterable[str]) -> None:
        """Keep places for these addresses; names, which are no addresses, are left out."""
        self._members |= {plain for each in addresses if (plain := _plain(each))}

    def source(self, address: str) -> str:
        """Return how connections are counted: by address, or by a stranger's IPv6 network."""
        plain = _plain(address)
        if ":" not in plain or plain in self._members:
            return plain
        return str(ipaddress.ip_network((plain, _NETWORK_BITS), strict=False))

    def who_goes(self, source: str) -> int | None:
        """Return the connection to close for one more of ``source``; ``None`` if there is room."""
        waiting = {n: g.source for n, g in self.pending.items() if not g.proved}
        same = [number for number, other in waiting.items() if other == source]
        if source in self._members:
            return random.choice(same) if len(same) >= MEMBER_QUOTA else None
        if len(same) >= QUOTA:
            return random.choice(same)
        strangers = {n: other for n, other in waiting.items() if other not in self._members}
        return _one_of_the_most(strangers) if len(strangers) >= MAX_PENDING else None

    def anybody(self) -> int | None:
        """Return any connection to close, when no source has too many."""
        return _one_of_the_most({n: g.source for n, g in self.pending.items() if not g.proved})


def _one_of_the_most(waiting: dict[int, str]) -> int | None:
    counts = Counter(waiting.values())
    most = max(counts.values(), default=0)
    return random.choice([n for n, source in waiting.items() if counts[source] == most] or [None])


def _plain(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address.strip("[]").partition("%")[0]))
    except ValueError:
        return ""


class Listener:
    """Listens on one address; ``accept`` returns only channels whose peer has proved the key."""

    def __init__(
        self,
        address: str,
        key: RunKey,
        *,
        port: int = 0,
        tls: bool = False,
        name: str | None = None,
        members: Iterable[str] = (),
    ) -> None:
        """``name``: a name that callers have to give; by default, the address and port.

        For ``members``, addresses of the run's machines, places are kept.
        """
        self._socket = listening(address, port, BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        self._identity = ListenerIdentity(key, name or endpoint(address, self.port), tls)
        self._selector = selectors.DefaultSelector()
        self._lobby = Lobby()
        self._pending = self._lobby.pending
        self.expect_from([address, *members])
        self._arrived: deque[Channel] = deque()
        self._ready = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        self._accepting = threading.Lock()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._stop, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="phalanx-listener", daemon=True)
        self._thread.start()

    def accept(self, timeout: float | None = None) -> Channel | None:
        """Return the next member that proved the key; ``None`` after ``timeout`` or ``close``."""
        with self._accepting:
            if self._closed:
                return None
            poller = select.poll()
            poller.register(self._ready, select.POLLIN)
            poller.poll(None if timeout is None else max(0.0, timeout) * 1000)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._ready)
                return None if self._closed else self._arrived.popleft()
            return None

    def expect_from(self, addresses: Iterable[str]) -> None:
        """Keep places for members that come from these addresses."""
        self._lobby.reserve(addresses)

    def fileno(self) -> int:
        """The descriptor, which is readable when a channel waits to be accepted."""
        return self._ready

    def close(self) -> None:
        """Stop listening, and close channels that were not accepted."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._stop, 1)
        os.eventfd_write(self._ready, 1)
        self._thread.join()
        with self._accepting:
            os.close(self._ready)
            os.close(self._stop)
            while self._arrived:
                self._arrived.popleft().close()

    def _serve(self) -> None:
        try:
            while not self._closed:
                for chosen, _ in self._selector.select(self._pause()):
                    if chosen.fd == self._socket.fileno():
                        self._let_in()
                    elif chosen.fd in self._pending:
                        self._advance(chosen.fd)
                self._drop_late()
        finally:
            self._selector.close()
            self._socket.close()
            for pending in self._pending.values():
                pending.connection.close()

    def _pause(self) -> float | None:
        """Return the seconds until the oldest connection, the first in the list, times out."""
        for pending in self._pending.values():
            return max(0.0, pending.deadline - time.monotonic())
        return None

    def _let_in(self) -> None:
        try:
            connection, address = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:
            # The caller has gone, or there are no file numbers left: make room, and do not spin.
            self._turn_away(self._lobby.anybody())
            time.sleep(_REST_SECONDS)
            return
        source = self._lobby.source(address[0])
        self._turn_away(self._lobby.who_goes(source))
        try:
            pending = PendingConnection(connection, self._identity, source)
            self._selector.register(connection, pending.events)
        except OSError:
            connection.close()
        else:
            self._pending[connection.fileno()] = pending

    def _advance(self, number: int) -> None:
        pending = self._pending[number]
        try:
            channel = pending.advance()
        except OSError:
            self._selector.unregister(number)
            self._pending.pop(number).connection.close()
            return
        if channel is None:
            self._selector.modify(number, pending.events)
            return
        del self._pending[number]
        self._selector.unregister(number)
        self._arrived.append(channel)
        os.eventfd_write(self._ready, 1)

    def _turn_away(self, number: int | None) -> None:
        if number is not None:
            self._selector.unregister(number)
            self._pending.pop(number).turn_away()

    def _drop_late(self) -> None:
        now = time.monotonic()
        for number in [n for n, pending in self._pending.items() if pending.deadline <= now]:
            self._turn_away(number)
