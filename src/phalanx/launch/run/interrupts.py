"""Counts signals that ask the controller to stop; its loop looks at the count.

An exception raised by a handler could strike between a process being started and being noted;
a count cannot, so Ctrl-C is safe at any moment.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_TICK = 0.02
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Within the ``with`` block, counts SIGINT, SIGTERM and SIGHUP instead of obeying them."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def asked(self) -> bool:
        return self.count > 0

    def insisted(self) -> bool:
        """Whether the user pressed Ctrl-C more than once, and does not want to wait."""
        return self.count > 1

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python allows handlers in the main thread only
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if number == signal.SIGHUP and before == signal.SIG_IGN:
                continue  # the command was started by nohup
            self._before[number] = signal.SIG_DFL if before is None else before
            signal.signal(number, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


def await_end(ended: Callable[[], bool], seconds: float, hurry: Callable[[], bool]) -> None:
    """Wait until ``ended()`` or ``hurry()``, at most for ``seconds``."""
    deadline = time.monotonic() + seconds
    while not ended() and time.monotonic() < deadline and not hurry():
        time.sleep(_TICK)
