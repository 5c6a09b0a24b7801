"""Addresses to listen on and to connect to: always one, never all of the machine's."""

from __future__ import annotations

import ipaddress
import socket

from phalanx.core.errors import InputError

SocketAddress = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def resolve(address: str, port: int) -> tuple[socket.AddressFamily, SocketAddress]:
    """The family and socket address of ``address`` (a number or a name)."""
    try:
        found = socket.getaddrinfo(address or "?", port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InputError(
            f"No address is known for {address!r}.", "Write the machine's address as a number."
        ) from None
    family, _, _, _, where = found[0]
    return family, where


def listening(address: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens on ``address`` only and never blocks."""
    family, where = resolve(address, port)
    if ipaddress.ip_address(str(where[0]).partition("%")[0]).is_unspecified:
        raise InputError(
            f"{address} would let everybody in who reaches any network of this machine.",
            "Listen on the machine's address in the pool, or on 127.0.0.1.",
        )
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(backlog)
    except OSError as error:
        made.close()
        raise InputError(
            f"Cannot listen on {address} port {port}: {error.strerror}.",
            "The address has to be one of this machine's, and the port free.",
        ) from None
    made.setblocking(False)
    return made
