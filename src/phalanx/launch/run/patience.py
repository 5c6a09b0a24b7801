"""A limit of time that does not count the time in which this computer slept."""

from __future__ import annotations

import time

MOST_STEP = 1.0
"""Most seconds between two calls of ``over``; in a longer pause this computer slept."""


class Patience:
    """A time limit that begins with the first ``over()``, without this computer's sleep."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._asked: float | None = None

    def over(self) -> bool:
        now = time.monotonic()
        if self._asked is not None:
            self._left -= min(now - self._asked, MOST_STEP)
        self._asked = now
        return self._left <= 0
