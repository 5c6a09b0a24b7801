"""Write a worker's events without ever making training wait.

The training thread only appends to lists; a background thread turns them into lines, at most
one batch of steps every 250 ms.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from phalanx.observe.events.event_types import STEP_COLUMNS, Alive, Event, Steps, encode

INTERVAL = 0.25
SIGN_OF_LIFE = 5.0
"""Seconds without an event after which a worker writes that it is alive."""
EVERY = int(SIGN_OF_LIFE / INTERVAL)
LOOK = 4
"""Looks at where the training is are so many intervals apart."""
MOST_UNWRITTEN = 1 << 24
"""The most bytes that are kept while the disk is full; all are dropped when there are more."""
MOST_ROWS = 10_000
"""The most steps in one line: readers skip lines that are too long."""

STACK = "phalanx-stack"
"""The memory in which a worker shows where its training is, for ``agent.machine.frozen``."""
MOST_FRAMES, MOST_LETTERS = 14, 150
"""The most frames that are shown, and the most letters of each: a sample with some workers' frames
has to stay one line."""
_PACKAGE = f"{Path(__file__).parents[2]}/"

StepRow = tuple[
    int, float, int, float, float, float, float, float, float, float, int, float | None, float
]  # epoch and the columns of ``Steps``


class EventWriter:
    """Writes a rank's events to ``path``; if that is ``None``, everything is dropped."""

    def __init__(self, path: Path | None, rank: int) -> None:
        self._rank = rank
        self._events: deque[Event] = deque()
        self.rows: deque[StepRow] = deque(maxlen=None if path else 0)
        """Steps that are still to be written."""
        self._written = 0
        self._unwritten = b""
        self._stop = threading.Event()
        self._flushing = threading.Lock()
        self._file: BinaryIO | None = path.open("ab", buffering=0) if path else None
        self._thread = threading.Thread(target=self._loop, name="phalanx-events", daemon=True)
        self._watch = StackWatch() if path else None
        self.also: Callable[[], Event | None] = lambda: None
        """Asked every few seconds for an event to write."""
        if self._file:
            self._thread.start()

    def emit(self, event: Event) -> None:
        if self._file:
            self._events.append(event)

    def close(self) -> None:
        """Write all pending events and close the file. May be called twice."""
        self._stop.set()
        if self._file:
            self.flush()
            with self._flushing:
                self._file.close()
                self._file = None
                if self._watch is not None:
                    self._watch.close()

    def _loop(self) -> None:
        assert self._watch is not None
        quiet = 0
        told: list[str] = []
        for count in itertools.count(1):
            if self._stop.wait(INTERVAL):
                return
            quiet = 0 if self.flush() else quiet + 1
            if not count % EVERY and (event := self.also()):
                self.emit(event)
            if not count % LOOK:
                with self._flushing:
                    if self._file:
                        self._watch.look()
            if quiet * INTERVAL >= SIGN_OF_LIFE:
                new = None if self._watch.stack == told else self._watch.stack
                told = self._watch.stack
                self.emit(Alive(rank=self._rank, stack=new, busy=self._watch.busy))

    def flush(self) -> bool:
        """Write all pending events; return whether there were any."""
        with self._flushing:
            if not self._file:
                return False
            lines = [encode(batch) for batch in self._take_steps()]
            while self._events:
                lines.append(encode(self._events.popleft()))
            self._unwritten += b"".join(lines)
            self._write()
            return bool(lines)

    def _write(self) -> None:
        """Write as much as possible now: a full disk must not end the training."""
        assert self._file is not None
        try:
            while self._unwritten:
                written = self._file.write(self._unwritten)
                self._unwritten = self._unwritten[written:]
        except OSError:
            if len(self._unwritten) > MOST_UNWRITTEN:
                self._unwritten = b"\n"  # ends a line that was cut in half

    def _take_steps(self) -> list[Steps]:
        rows = [self.rows.popleft() for _ in range(len(self.rows))]
        batches: list[list[StepRow]] = []
        for row in rows:
            if batches and batches[-1][0][0] == row[0] and len(batches[-1]) < MOST_ROWS:
                batches[-1].append(row)
            else:
                batches.append([row])
        return [self._columns(batch) for batch in batches]

    def _columns(self, rows: list[StepRow]) -> Steps:
        first, self._written = self._written, self._written + len(rows)
        columns = (list(c) for c in zip(*rows, strict=True))
        epoch, began, samples, *times, staleness, loss, hidden = columns
        began = [round(moment, 6) for moment in began]
        times = [[round(seconds, 7) for seconds in column] for column in times]
        hidden = [round(seconds, 7) for seconds in hidden] if any(hidden) else []
        found = [began, samples, *times, staleness, loss, hidden]
        named = dict(zip(STEP_COLUMNS, found, strict=True))
        return Steps(rank=self._rank, epoch=epoch[0], first=first, **named)


class StackWatch:
    """Looks from another thread where the one that made it is, in case that one hangs."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        main = threading.current_thread() is threading.main_thread()
        # The clock of a thread that has ended must not be read; the main thread ends last.
        known = main and hasattr(time, "pthread_getcpuclockid")
        self._clock = time.pthread_getcpuclockid(self._thread) if known else None
        self._memory = os.memfd_create(STACK) if hasattr(os, "memfd_create") else None
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
        self.stack = self._places()
        if self._memory is not None:
            text = json.dumps({"time": now, "stack": self.stack}).encode()
            with contextlib.suppress(OSError):  # of a closed memory, or where there is none left
                os.pwrite(self._memory, text, 0)
                os.ftruncate(self._memory, len(text))

    def close(self) -> None:
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def _places(self) -> list[str]:
        """Where the thread is. A frame that was kept while the thread goes on would keep alive what
        the script has dropped, such as an earlier model, on this worker alone."""
        found = []
        inner = sys._current_frames().get(self._thread)
        for frame, line in traceback.walk_stack(inner) if inner else ():
            file = frame.f_code.co_filename
            file = f"phalanx/{file.removeprefix(_PACKAGE)}" if file.startswith(_PACKAGE) else file
            found.append(f"{file}:{line} {frame.f_code.co_name}"[-MOST_LETTERS:])
        return found[:MOST_FRAMES]

    def _used(self) -> float:
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)
