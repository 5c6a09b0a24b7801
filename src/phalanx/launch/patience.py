"""How long something may go on once it was noticed."""

from __future__ import annotations

import time


class Patience:
    """Runs out some seconds after it was first asked for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def over(self) -> bool:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= self._seconds
