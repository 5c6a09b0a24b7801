"""Looks where a worker's training thread is, for a run in which some worker makes no step."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time

import phalanx
from phalanx.agent.machine.frozen import MOST_FRAMES, MOST_LETTERS, NAME

_PACKAGE = f"{os.path.dirname(phalanx.__file__)}/"  # noqa: PTH120  (as code objects have it)


class StackWatch:
    """Looks at the thread that made it, from another one; costs that thread nothing."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        main = threading.current_thread() is threading.main_thread()
        # The clock of a thread that has ended must not be read; the main thread ends last.
        known = main and hasattr(time, "pthread_getcpuclockid")
        self._clock = time.pthread_getcpuclockid(self._thread) if known else None
        self._memory = os.memfd_create(NAME) if hasattr(os, "memfd_create") else None
        self._before = (time.monotonic(), self._used())
        self.stack: list[str] = []
        """Where the thread was at the last look, innermost frame first."""
        self.busy: float | None = None
        """The thread's processor time between the last two looks, in cores."""

    def look(self) -> None:
        """Look where the thread is, and show it to the processes of this user."""
        now, used = time.monotonic(), self._used()
        then, used_before = self._before
        self._before = now, used
        self.busy = None if self._clock is None else (used - used_before) / max(now - then, 1e-6)
        frame, found = sys._current_frames().get(self._thread), []
        while frame is not None and len(found) < MOST_FRAMES:
            code = frame.f_code
            file = code.co_filename
            file = f"phalanx/{file.removeprefix(_PACKAGE)}" if file.startswith(_PACKAGE) else file
            found.append(f"{file}:{frame.f_lineno} {code.co_name}"[-MOST_LETTERS:])
            frame = frame.f_back
        self.stack = found
        if self._memory is not None:
            text = json.dumps({"time": now, "stack": found}).encode()
            with contextlib.suppress(OSError):  # of a closed memory, or where there is none left
                os.pwrite(self._memory, text, 0)
                os.ftruncate(self._memory, len(text))

    def close(self) -> None:
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def _used(self) -> float:
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)
