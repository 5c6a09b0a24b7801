"""How long something may go on once it was noticed."""

from __future__ import annotations

import time

MOST_STEP = 1.0
"""Seconds between two questions that count; more is a sleep."""


class Patience:
    """Runs out some seconds after it was first asked for, however long this computer sleeps."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._asked: float | None = None

    def over(self) -> bool:
        now = time.monotonic()
        if self._asked is not None:
            self._left -= min(now - self._asked, MOST_STEP)
        self._asked = now
        return self._left <= 0
