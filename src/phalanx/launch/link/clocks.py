"""Measures the difference between a machine's clocks and this machine's."""

from __future__ import annotations

import time
from collections import deque

from phalanx.launch.link.agent_frames import Pong

SKEW_WARNING = 5.0
"""Seconds by which two machines' wall clocks may differ without a warning."""
PONGS_KEPT = 30
"""Pings that are kept, of the last half minute: because clocks drift, older ones do not count."""


class ClockOffset:
    """The difference of a machine's monotonic clock from ours, from the pings it answers."""

    def __init__(self) -> None:
        self._pongs: deque[tuple[float, float]] = deque(maxlen=PONGS_KEPT)

    @property
    def seconds(self) -> float:
        """Seconds to add to the machine's clock to get ours, according to the ping that took the
        least time."""
        return min(self._pongs)[1] if self._pongs else 0.0

    def take(self, pong: Pong) -> None:
        now = time.monotonic()
        self._pongs.append((now - pong.sent, (now + pong.sent) / 2 - pong.mine))


def clock_words(name: str, skew: float) -> str:
    side = "ahead of" if skew > 0 else "behind"
    return f"{name}: its clock is {_duration(abs(skew))} {side} this machine's"


def _duration(seconds: float) -> str:
    for unit, size in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        # A minute less than an hour counts as an hour: clocks are not set to 59 minutes.
        if seconds >= size * 0.98:
            number = round(seconds / size)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{seconds:.1f} seconds"
