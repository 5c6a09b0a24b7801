"""One connection or memory for several processes of a host: the leader hands out its descriptor.

It goes through a socket of the kernel's own (an abstract Unix address, which no file has). What
members put among the run's values is only that address: the kernel says which user is behind it,
on both sides, and the receiver of a descriptor also checks that the sender has the run's key.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from phalanx.core.errors import PeerLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.arena.remote.remote_arena import RemoteArena

WAIT_SECONDS = 120.0
"""The leader may wait for a server that is still starting; a lost one is noticed at once."""
_LOOK_SECONDS = 0.5
_SEND_SECONDS = 10.0  # between connecting and sending, on a busy machine
_CREDENTIALS = struct.Struct("=iII")


def hand_out(
    descriptor: int, name: str, to: Sequence[int], notes: RemoteArena, key: RunKey
) -> None:
    """Give ``descriptor`` to the workers ``to``, who call :func:`take` with the same name."""
    for rank in to:
        door = notes.get(f"{name}.{rank}")
        try:
            with _socket() as sender:
                sender.settimeout(WAIT_SECONDS)
                if door[:1] != b"\0":
                    raise PermissionError
                sender.connect(door)
                if not _is_this_user(sender):
                    raise PermissionError
                socket.send_fds(sender, [_proof(key, name, door)], [descriptor])
        except OSError:
            raise PeerLost(
                f"worker {rank} claims to wait for {name}, but no process of this user does",
                "Look for a process on this machine or in this run that is not Phalanx's.",
            ) from None


def take(name: str, rank: int, notes: RemoteArena, key: RunKey) -> int:
    """The descriptor that this host's leader hands out."""
    with _socket() as receiver:
        receiver.bind(b"")  # the kernel chooses an address
        receiver.listen(8)
        door = receiver.getsockname()
        notes.put(f"{name}.{rank}", door)
        proof, end = _proof(key, name, door), time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            receiver.settimeout(_LOOK_SECONDS)
            with suppress(OSError), receiver.accept()[0] as sender:
                if (descriptor := _received(sender, proof)) is not None:
                    return descriptor
            notes.check()
    raise PeerLost(f"the first worker of this machine did not share {name}", "See its log.")


def _received(sender: socket.socket, proof: bytes) -> int | None:
    """Returns the descriptor that comes with ``proof``; anybody here can send something else."""
    if not _is_this_user(sender):
        return None
    sender.settimeout(_SEND_SECONDS)
    given, descriptors, _, _ = socket.recv_fds(sender, 64, 1)
    if len(descriptors) == 1 and hmac.compare_digest(given, proof):
        os.set_inheritable(descriptors[0], False)
        return descriptors[0]
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _is_this_user(connection: socket.socket) -> bool:
    """Whether the kernel says so of the other side."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.getuid())


def _proof(key: RunKey, name: str, door: bytes) -> bytes:
    message = b"phalanx shares " + name.encode() + b"\0" + door
    return hmac.digest(key.secret(), message, "sha256")
