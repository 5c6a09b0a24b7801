"""A barrier of few workers without the coordinator: each sends its changes to every other.

It saves a round trip to the coordinator. Changes that were sent to the coordinator since all last
met there have to arrive first, so a worker that sent some says so, and then all meet at the
coordinator instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from phalanx.core.errors import MachineLost
from phalanx.sync.arena.remote.coordinator_client import NOTHING, SLICE_SECONDS, Changes
from phalanx.sync.arena.remote.coordinator_messages import RUN_BYTES
from phalanx.sync.connect.channel import Channel

MOST_WORKERS = 8
MOST_BYTES = 1 << 14
"""Most bytes of changes to send directly: kernels may not hold more until it is read."""


class Arrival(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    number: int
    """The number of this barrier, which all workers count alike."""
    runs: int
    at_coordinator: bool
    """Whether this worker asks all to meet at the coordinator."""


_decoder = msgspec.msgpack.Decoder(Arrival)
_encode = msgspec.msgpack.Encoder().encode


@dataclass
class DirectBarrier:
    """Meets all other workers over ``channels``; a wait calls ``look`` now and then."""

    channels: Mapping[int, Channel]
    look: Callable[[], None]
    number: int = 0

    def __post_init__(self) -> None:
        for channel in self.channels.values():
            channel.max_payload = 4 * MOST_BYTES

    def meet(
        self, changes: Changes, *, at_coordinator: bool, gone: Callable[[], None]
    ) -> tuple[bool, list[tuple[int, bytearray, bytearray]]]:
        """Return whether all must meet at the coordinator now, and the others' changes."""
        self.number += 1
        runs, places, values = NOTHING if at_coordinator else changes
        header = _encode(Arrival(self.number, runs, at_coordinator))
        for channel in self.channels.values():
            channel.send(header, places, values)
        heard = []
        for channel in self.channels.values():
            arrival, found = self._hear(channel, gone)
            at_coordinator |= arrival.at_coordinator
            heard.append(found)
        return at_coordinator, heard

    def _hear(
        self, channel: Channel, gone: Callable[[], None]
    ) -> tuple[Arrival, tuple[int, bytearray, bytearray]]:
        try:
            while not channel.poll(SLICE_SECONDS):
                self.look()
                gone()
            header, size = channel.receive()
            arrival = _decoder.decode(header)
            places = bytearray(RUN_BYTES * arrival.runs)
            values = bytearray(size - len(places))
            channel.receive_into(memoryview(places), memoryview(values))
        except MachineLost:
            time.sleep(SLICE_SECONDS)  # the coordinator may know better which worker is gone
            self.look()
            gone()
            raise
        except (msgspec.MsgspecError, ValueError):
            raise channel.lost("it sent an unexpected message at a barrier") from None
        if arrival.number != self.number:
            raise channel.lost("it is at another barrier")
        return arrival, (arrival.runs, places, values)

    def close(self) -> None:
        for channel in self.channels.values():
            channel.close()
