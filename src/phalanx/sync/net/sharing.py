"""One connection for several processes of a host: the leader hands its descriptor to the others.

It goes through a socket of the kernel's own (an abstract Unix address, which no file has), and
whoever receives it checks that the sender has the run's key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from phalanx.core.errors import PeerLost
from phalanx.core.run_key import RunKey
from phalanx.sync.net.channel import Channel

WAIT_SECONDS = 30.0


class Notes(Protocol):
    """Values that all processes of a run see."""

    def put(self, key: str, value: bytes) -> None: ...

    def get(self, key: str) -> bytes: ...


def hand_out(channel: Channel, name: str, to: Sequence[int], notes: Notes, key: RunKey) -> None:
    """Give ``channel`` to the workers ``to``, who call :func:`take` with the same name."""
    for rank in to:
        door = notes.get(f"{name}.{rank}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(door)
            socket.send_fds(sender, [_proof(key, name, door)], [channel.fileno()])


def take(name: str, rank: int, notes: Notes, key: RunKey, peer: str) -> Channel:
    """The channel that this host's leader hands out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(b"")  # the kernel chooses an address
        door = receiver.getsockname()
        notes.put(f"{name}.{rank}", door)
        return Channel(_received(receiver, _proof(key, name, door), name), peer)


def _received(receiver: socket.socket, proof: bytes, name: str) -> socket.socket:
    """What comes with ``proof``; anybody on this machine can send something here."""
    end = time.monotonic() + WAIT_SECONDS
    while (left := end - time.monotonic()) > 0:
        receiver.settimeout(left)
        with suppress(TimeoutError):
            given, descriptors, _, _ = socket.recv_fds(receiver, 64, 1)
            if len(descriptors) == 1 and hmac.compare_digest(given, proof):
                return socket.socket(fileno=descriptors[0])
            for descriptor in descriptors:
                os.close(descriptor)
    raise PeerLost(f"the first worker of this machine did not share {name}")


def _proof(key: RunKey, name: str, door: bytes) -> bytes:
    message = b"phalanx shares " + name.encode() + b"\0" + door
    return hmac.new(key.secret(), message, hashlib.sha256).digest()
