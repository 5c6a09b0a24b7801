"""A connection on its way in: first the key, then TLS if the run wants it, then a channel."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import struct
from dataclasses import dataclass

from phalanx.core.hosts_settings import endpoint
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.handshake import PLAIN_GREETING, TLS_GREETING, ServerHandshake

_AT_ONCE = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class ListenerIdentity:
    """What a listener is to those who come: its key, its name, and whether it speaks TLS."""

    key: RunKey
    name: str
    tls: bool


class PendingConnection:
    """Never blocks; every failure is an ``OSError``, and to the other side just an end."""

    def __init__(self, connection: socket.socket, listener: ListenerIdentity, source: str) -> None:
        self.connection = connection
        self.source = source
        """Whose quota it is under."""
        self.proved = False
        self.events = selectors.EVENT_READ
        self._listener = listener
        greeting = TLS_GREETING if listener.tls else PLAIN_GREETING
        self._proof = ServerHandshake(connection, listener.key, greeting, listener.name)
        self.deadline = self._proof.deadline
        self._secured: ssl.SSLSocket | None = None

    def advance(self) -> Channel | None:
        """Take what has come; the channel once everything is proved."""
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
        """For want of room: reset, so that a member knows it from a refusal and comes again."""
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
    """The other side's address and port, for messages."""
    address, port = connection.getpeername()[:2]
    return endpoint(address, port)
