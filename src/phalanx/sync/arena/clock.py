"""The clock is given to strategies, never read by them: real time here, virtual time elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds; only differences mean anything."""


class MonotonicClock:
    """CLOCK_MONOTONIC, which all processes of a host share."""

    now = staticmethod(time.monotonic)  # itself: a step asks a dozen times


@dataclass(frozen=True)
class ShiftedClock:
    """The clock of another host, as far as this one can tell: its own, and how far apart."""

    ahead: float
    """Seconds by which the other clock is ahead of this host's."""

    def now(self) -> float:
        return time.monotonic() + self.ahead


Members = tuple[int, ...]


class Toll:
    """The virtual time that exchanges cost one worker. This one is of real time: nothing is
    charged."""

    charges = False
    """Whether time that is charged passes here."""
    apart = False
    """Whether what a worker has may be older than what the store has by then."""

    def all_reduce(
        self, members: Members, count: float, topology: str | None = None, *, coded: bool = False
    ) -> None:
        """All of ``members`` have met, and sum ``count`` bytes, or what a codec made of them."""

    def update(self) -> None:
        """The optimizer's step on all parameters, here."""

    def request(self, shard: int, count: float, update: float = 0.0) -> float:
        """``count`` bytes go to the server of ``shard``, whose optimizer then takes the share
        ``update`` of a whole step. Returns when the server begins with it: seconds on links."""
        return 0.0

    def serve(self, shard: int, update: float) -> None:
        """The server of ``shard`` takes the share ``update`` of a step, with what all have sent."""

    def reply(self, shard: int, count: float) -> None:
        """The server of ``shard`` has done it and answers with ``count`` bytes."""

    def settle(self) -> float:
        """End a wait for answers; returns the part of it that servers' updates took."""
        return 0.0
