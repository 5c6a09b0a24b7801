"""Connects to a listener and proves the run's key to it. Listens on one address, never on all."""

from __future__ import annotations

import errno
import ipaddress
import random
import socket
import time

from phalanx.core.errors import InputError, MachineLost
from phalanx.core.hosts_settings import endpoint
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.handshake import (
    PLAIN_GREETING,
    TLS_GREETING,
    Caller,
    Dropped,
    Introduction,
    without_key,
)

# A listener that has no room resets the connection, one that does not like our proof just ends it.
# The network may turn an end into a reset, but hardly so often in a row.
MAX_REFUSED_PROOFS = 4
_REST_SECONDS = 0.05
_LONGEST_REST_SECONDS = 1.0
SocketAddress = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
_NO_PURPOSE = Introduction()
_NEVER = (errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT, errno.EINVAL)


def connect(
    address: str,
    port: int,
    key: RunKey,
    introduction: Introduction = _NO_PURPOSE,
    *,
    tls: bool = False,
    timeout: float = 10.0,
    source: str | None = None,
    name: str | None = None,
) -> Channel:
    """Open a channel to the listener at ``address``; try until ``timeout`` if there is none yet.

    ``source`` is the address of this machine to connect from, so that the network is not guessed.
    ``name`` is the listener's name, if it has one.
    """
    peer = endpoint(address, port)
    caller = Caller(key, TLS_GREETING if tls else PLAIN_GREETING, introduction, name or peer)
    deadline = time.monotonic() + timeout
    refused, rest = 0, _REST_SECONDS
    why = "there was no answer"
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise MachineLost(
                f"{peer} cannot be reached ({why})",
                "Check whether its machine is up, and whether a firewall blocks it.",
            )
        try:
            return _connect_once(address, port, caller, timeout=left, source=source)
        except Dropped as dropped:
            refused += dropped.refused
            why = "it ended the connection; perhaps its port is flooded"
            if refused >= MAX_REFUSED_PROOFS:
                raise without_key(peer) from None
            # Wait longer each time, and at random: many may be trying at once.
            rest = min(2 * rest, _LONGEST_REST_SECONDS)
        except OSError as error:
            if error.errno in _NEVER:
                raise _impossible(peer, source, error) from None
            why = (error.strerror or str(error)).lower()
        time.sleep(max(0.0, min(rest * random.uniform(0.5, 1.0), deadline - time.monotonic())))


def _connect_once(
    address: str, port: int, caller: Caller, *, timeout: float, source: str | None
) -> Channel:
    family, where = resolve(address, port)
    peer = endpoint(address, port)
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        if source is not None:
            connection.bind(resolve(source, 0)[1])
        connection.connect(where)
        if connection.getsockname() == connection.getpeername():
            # Nothing listens, and the kernel picked that very port for our own end.
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        binding = caller.prove(connection, peer, timeout)
        if caller.greeting == PLAIN_GREETING:
            return Channel(connection, peer)
        from phalanx.sync.connect.tls import Identity, client_channel

        return client_channel(connection, Identity(caller.key, binding), peer)
    except BaseException:
        connection.close()
        raise


def _impossible(peer: str, source: str | None, error: OSError) -> InputError:
    start = f" from {source}" if source else ""
    return InputError(
        f"cannot connect to {peer}{start}: {error.strerror}",
        "Use one of this machine's own addresses to connect from.",
    )


def resolve(address: str, port: int) -> tuple[socket.AddressFamily, SocketAddress]:
    """Return the family and the socket address of ``address`` (a number or a name)."""
    try:
        found = socket.getaddrinfo(address or "?", port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InputError(
            f"cannot resolve {address!r}", "Use the machine's numeric address."
        ) from None
    family, _, _, _, where = found[0]
    return family, where


def listening(address: str, port: int, backlog: int) -> socket.socket:
    """Make a socket that listens on ``address`` only and never blocks."""
    family, where = resolve(address, port)
    if ipaddress.ip_address(str(where[0]).partition("%")[0]).is_unspecified:
        raise InputError(
            f"listening on {address} would accept connections from every network of this machine",
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
            f"cannot listen on {address} port {port}: {error.strerror}",
            "Use an address of this machine and a free port.",
        ) from None
    made.setblocking(False)
    return made
