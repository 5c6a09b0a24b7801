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

    def now(self) -> float:
        return time.monotonic()


@dataclass(frozen=True)
class ShiftedClock:
    """The clock of another host, as far as this one can tell: its own, and how far apart."""

    ahead: float
    """Seconds by which the other clock is ahead of this host's."""

    def now(self) -> float:
        return time.monotonic() + self.ahead
