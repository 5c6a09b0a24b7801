"""One thing after the other, beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Does what it is given, one at a time, in a thread that never holds up an exit."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: threading.Thread | None = None

    def do(self, action: Callable[[], None]) -> None:
        before = self._last

        def in_turn() -> None:
            if before is not None:
                before.join()
            action()

        self._last = threading.Thread(target=in_turn, name=self._name, daemon=True)
        self._last.start()

    def wait(self, timeout: float) -> bool:
        """Whether all is done, at the latest after ``timeout`` seconds."""
        if self._last is not None:
            self._last.join(timeout)
            if self._last.is_alive():
                return False
            self._last = None
        return True
