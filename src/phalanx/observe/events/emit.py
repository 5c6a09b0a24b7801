"""Write a worker's events without ever making training wait.

The training thread only appends to lists; a background thread turns them into lines, at most
one batch of steps every 250 ms.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from phalanx.observe.events.event_types import STEP_COLUMNS, Alive, Event, Steps, encode
from phalanx.observe.events.stack_watch import StackWatch

INTERVAL = 0.25
SIGN_OF_LIFE = 5.0
"""Seconds without an event after which a worker writes that it is alive."""
EVERY = int(SIGN_OF_LIFE / INTERVAL)
LOOK = 1.0
"""Seconds between two looks at where the training is."""
MOST_UNWRITTEN = 1 << 24
"""The most bytes that are kept while the disk is full; all are dropped when there are more."""
MOST_ROWS = 10_000
"""The most steps in one line: readers skip lines that are too long."""

StepRow = tuple[
    int, float, int, float, float, float, float, float, float, float, int, float | None
]  # epoch, began, samples, input, compute, send, wait, reduce, update, settle, staleness, loss


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
        self._also: list[Callable[[], Event | None]] = []
        if self._file:
            self._thread.start()

    def emit(self, event: Event) -> None:
        if self._file:
            self._events.append(event)

    def also(self, make: Callable[[], Event | None]) -> None:
        """Write what ``make`` returns, every few seconds, if anything."""
        self._also.append(make)

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
        quiet, last, told = 0, 0.0, []
        for count in itertools.count(1):
            if self._stop.wait(INTERVAL):
                return
            quiet = 0 if self.flush() else quiet + 1
            if not count % EVERY:
                self._events.extend(event for make in self._also if (event := make()))
            if time.monotonic() - last >= LOOK:
                last = time.monotonic()
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
        epoch, began, samples, *times, staleness, loss = (list(c) for c in zip(*rows, strict=True))
        began = [round(moment, 6) for moment in began]
        times = [[round(seconds, 7) for seconds in column] for column in times]
        columns = zip(STEP_COLUMNS, [began, samples, *times, staleness, loss], strict=True)
        return Steps(rank=self._rank, epoch=epoch[0], first=first, **dict(columns))
