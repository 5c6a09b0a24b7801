"""A thread that keeps bytes moving while its owner computes."""

from __future__ import annotations

import threading
from collections.abc import Callable

from phalanx.core.errors import PeerLost


class Pump:
    """``move`` does what goes without waiting and says whether there is more; ``wait`` waits for
    that a little. Both are called by the thread, and never while the owner holds ``lock``."""

    def __init__(self, move: Callable[[], bool], wait: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self._move, self._wait = move, wait
        self._wanted = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """There is something to move, until ``rest``."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="phalanx-pump", daemon=True)
            self._thread.start()
        self._wanted.set()

    def rest(self) -> None:
        """From when this returns, and ``lock`` is held, nothing is moved any more."""
        self._wanted.clear()

    def close(self) -> None:
        self._over = True
        self._wanted.set()

    def _run(self) -> None:
        while not self._over:
            self._wanted.wait()
            try:
                with self.lock:
                    more = self._wanted.is_set() and not self._over and self._move()
                if more:
                    self._wait()
                else:
                    self._wanted.clear()
            except (PeerLost, OSError, ValueError):  # its owner will find out by itself
                self._wanted.clear()
