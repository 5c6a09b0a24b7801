"""Connections between the first worker and those of other machines: for what it alone keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence

from phalanx.sync.arena.remote.coordinator_messages import TrainingMember
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.credentials import Credentials
from phalanx.sync.connect.handshake import Introduction

OPEN_SECONDS = 60.0


def channels_with_first(
    rank: int, members: Sequence[TrainingMember], access: Credentials, tag: str
) -> dict[int, Channel]:
    """By rank: to all who are elsewhere, or to the first worker. Collective."""
    first, me = members[0], members[rank]
    far = [member for member in members if member.host != first.host]
    if rank == 0:
        deadline = time.monotonic() + OPEN_SECONDS
        expect = access.dispatcher.expect
        return {m.rank: expect(Introduction(tag, m.rank, 0), deadline, _name(m)) for m in far}
    if me.host == first.host:
        return {}
    channel = connect(
        first.address, first.port, access.key, Introduction(tag, rank, 0), tls=access.tls,
        timeout=OPEN_SECONDS, source=access.address,
    )  # fmt: skip
    channel.peer = _name(first)
    return {0: channel}


def _name(member: TrainingMember) -> str:
    return f"worker {member.rank} on {member.machine} ({member.address})"
