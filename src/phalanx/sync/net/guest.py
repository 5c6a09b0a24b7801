"""A connection on its way in: first the key, then TLS if the run wants it, then a channel."""

from __future__ import annotations

import selectors
import socket
import ssl
from typing import TYPE_CHECKING

from phalanx.core.addresses import endpoint
from phalanx.core.run_key import RunKey
from phalanx.sync.net.channel import Channel
from phalanx.sync.net.handshake import PLAIN_GREETING, TLS_GREETING, ServerHandshake

if TYPE_CHECKING:
    from phalanx.sync.net.tls import Identity


class Guest:
    """Never blocks; every failure is an ``OSError``, and to the other side just an end."""

    def __init__(self, connection: socket.socket, key: RunKey, identity: Identity | None) -> None:
        self.connection = connection
        self.events = selectors.EVENT_READ
        self._identity = identity
        greeting = PLAIN_GREETING if identity is None else TLS_GREETING
        self._proof = ServerHandshake(connection, key, greeting)
        self.deadline = self._proof.deadline
        self._secured: ssl.SSLSocket | None = None

    def advance(self) -> Channel | None:
        """Take what has come; the channel once everything is proved."""
        if self._secured is None:
            if not self._proof.advance():
                return None
            if self._identity is None:
                return Channel(self.connection, describe(self.connection))
            self._secured = self._identity.wrap(self.connection, server=True)
            self.connection = self._secured
        return self._secure(self._secured)

    def _secure(self, secured: ssl.SSLSocket) -> Channel | None:
        from phalanx.sync.net.tls import TlsChannel

        try:
            secured.do_handshake()
        except ssl.SSLWantReadError:
            self.events = selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            self.events = selectors.EVENT_WRITE
        else:
            return TlsChannel(secured, describe(secured))
        return None


def describe(connection: socket.socket) -> str:
    """The other side's address and port, for messages."""
    address, port = connection.getpeername()[:2]
    return endpoint(address, port)
