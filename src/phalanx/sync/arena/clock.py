"""Clocks and tolls for strategies, in real time; simulated runs use virtual ones instead."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds; only differences mean anything."""


class MonotonicClock:
    """CLOCK_MONOTONIC, which all processes of a host share."""

    now = staticmethod(time.monotonic)  # no method around it, for speed: a step calls it often


@dataclass(frozen=True)
class ShiftedClock:
    """Another host's clock, estimated from this host's and the difference between them."""

    ahead: float
    """Seconds by which the other clock is ahead of this host's."""

    def now(self) -> float:
        return time.monotonic() + self.ahead


Members = tuple[int, ...]


class Toll:
    """Charges a worker the virtual time that exchanges cost. This one charges nothing: time is
    real."""

    charges = False
    """Whether this charges time at all."""
    apart = False
    """Whether a worker's copy of the parameters may be older than the store's."""

    def all_reduce(
        self, members: Members, count: float, topology: str | None = None, *, coded: bool = False
    ) -> None:
        """Charge for a sum of ``count`` bytes, coded or not, for which ``members`` have met."""

    def update(self) -> None:
        """Charge for the optimizer's step on all parameters, on this worker."""

    def request(self, shard: int, count: float, update: float = 0.0) -> float:
        """Send ``count`` bytes to the server of ``shard``, whose optimizer then takes the share
        ``update`` of a step. Returns when the server begins with it: seconds on links."""
        return 0.0

    def serve(self, shard: int, update: float) -> None:
        """Charge the server of ``shard`` for the share ``update`` of a step, once all have sent."""

    def reply(self, shard: int, count: float) -> None:
        """Charge for an answer of ``count`` bytes from the server of ``shard``."""

    def settle(self) -> float:
        """End a wait for answers; return the seconds of it in which servers updated."""
        return 0.0
