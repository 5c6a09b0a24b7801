"""The clock is given to strategies, never read by them: real time here, virtual time elsewhere."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds; only differences mean anything."""


class MonotonicClock:
    """CLOCK_MONOTONIC, which all processes of a host share."""

    def now(self) -> float:
        return time.monotonic()
