"""Notices a cut link from what the kernel knows, without heartbeats of our own.

The kernel asks idle connections every second (keepalive). While bytes are under way it does not,
and ``TCP_USER_TIMEOUT`` cannot replace that for large messages: the kernel also counts the time in
which a living peer does not read, and would drop a worker that computes for long. So a process that
waits looks at the connection once a second.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time

LOOK_SECONDS = 1
SILENT_MILLISECONDS = 3500
_USER_TIMEOUT_MILLISECONDS = 5000
# Since Linux 6.15, and not in Python: it bounds the pause between two tries.
_TCP_RTO_MAX_MS = 44
_LONGEST_PAUSE_MILLISECONDS = 1000
# struct tcp_info: retransmits and probes are its third and fourth bytes, last_ack_recv is a word.
_COUNTS = struct.Struct("=2xBB")
_LAST_ACK = struct.Struct("=I")
_LAST_ACK_AT = 56
_INFO_BYTES = 60
# Two words: bytes the peer has confirmed; later, microseconds with bytes under way, and those of
# them in which the peer had no room for more.
_CONFIRMED, _CONFIRMED_AT = struct.Struct("=Q"), 120
_BUSY, _BUSY_AT = struct.Struct("=QQ"), 168
_USE_BYTES = 184


def prepare(connection: socket.socket) -> None:
    """Make a connection send at once, probe a silent peer, and return within a second."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MILLISECONDS)
    # Without it (an older kernel) a cut link is noticed later if the peer had not read for long.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_PAUSE_MILLISECONDS)
    pause = struct.pack("@ll", LOOK_SECONDS, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pause)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pause)


def allow_slow_reader(connection: socket.socket) -> None:
    """Keep a peer that lives but reads slowly: from now on only ``LinkWatch`` judges it."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)


def use_of(connection: socket.socket) -> tuple[int, float]:
    """Return the bytes that have reached the peer, and the seconds that they took on the link,
    without those in which the peer did not read."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _USE_BYTES)
    if len(info) < _USE_BYTES:
        return 0, 0.0  # before Linux 4.10
    (confirmed,) = _CONFIRMED.unpack_from(info, _CONFIRMED_AT)
    busy, refused = _BUSY.unpack_from(info, _BUSY_AT)
    return confirmed, (busy - refused) / 1e6


class LinkWatch:
    """Finds a cut link by two looks in a row, so that an answer under way is not missed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._suspected_at = math.inf

    def is_cut(self) -> bool:
        """Has the peer's kernel left what we sent unanswered for seconds, now and a look ago?

        One thread may send while another receives, and both look.
        """
        info = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        resent, probes = _COUNTS.unpack_from(info)
        (silent,) = _LAST_ACK.unpack_from(info, _LAST_ACK_AT)
        suspicious = bool(resent or probes) and silent > SILENT_MILLISECONDS
        now = time.monotonic()
        if not suspicious:
            self._suspected_at = math.inf
        elif self._suspected_at == math.inf:
            self._suspected_at = now
        return now - self._suspected_at >= LOOK_SECONDS / 2
