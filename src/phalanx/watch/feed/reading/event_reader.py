"""Reads a worker's events while they are written, without reading all of its steps.

A long run has millions of steps, which the roll-ups add up. Here only the newest of them are
decoded, and all other events.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

import msgspec

from phalanx.observe.events import event_types as ev
from phalanx.observe.events.collect import LineTail
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.summary.progress_state import ProgressState

_STEPS = b'{"type":"steps"'
_NEWEST = 100
"""The most lines of steps that are decoded of the newest chunk."""
_MOST_ROWS = 300
"""How many of its newest steps a worker is judged by."""


class RankReader:
    """One worker's events: all but its steps in ``log``, and its newest steps."""

    def __init__(self, path: Path, rank: int) -> None:
        self.log = RankLog(rank)
        self.tail = LineTail(path)
        self._recent: deque[ev.Steps] = deque()
        self._rows = 0
        self._steps = 0
        """How many steps the worker has made."""
        self._before = 0
        """How many of them before its present epoch."""
        self._skipped = False

    def window(self) -> RankLog:
        """The log with the newest steps."""
        log = replace(self.log, steps=[], rounds=[])
        for steps in self._recent:
            log.add(steps)
        return log

    def read(self, state: ProgressState) -> bool:
        """Read the next part of what is new; return whether there was anything."""
        before, lines = self.tail.size, self.tail.poll()
        if self.tail.size < before:  # another file: a controller reads printed figures anew
            self.log = RankLog(self.log.rank)
        self._take(lines, state)
        return bool(lines)

    def _take(self, lines: list[bytes], state: ProgressState) -> None:
        steps = sum(line.startswith(_STEPS) for line in lines)
        left_out = steps if self.tail.unread else max(0, steps - _NEWEST)
        last = b""
        for line in lines:
            if line.startswith(_STEPS):
                last, left_out = line, left_out - 1
                if left_out >= 0:
                    self._skipped = True
                else:
                    self._take_steps(_decoded(line), state)
            elif event := _decoded(line):
                if isinstance(event, ev.EpochDone):
                    self._before = _after(_decoded(last)) or self._steps
                self.log.add(event)
                state.take(event)
        if self._skipped and not self.tail.unread:
            self._estimate(state)

    def _take_steps(self, event: ev.Event | None, state: ProgressState) -> None:
        if not isinstance(event, ev.Steps) or not event.began:
            return
        self._steps = event.first + len(event.began)
        state.take(event)
        self._recent.append(event)
        self._rows += len(event.began)
        while self._rows - len(self._recent[0].began) > _MOST_ROWS:
            self._rows -= len(self._recent.popleft().began)

    def _estimate(self, state: ProgressState) -> None:
        """Set how many samples were trained, where steps were skipped: exactly in past epochs, and
        by the newest steps in the present one."""
        samples = sum(done.samples for done in self.log.epochs)
        recent = [count for steps in self._recent for count in steps.samples]
        mean = sum(recent) / len(recent) if recent else 0.0
        samples += round(mean * max(0, self._steps - self._before))
        if self.log.rank in state.workers:
            state.workers[self.log.rank].samples = samples
        self._skipped = False


def _after(event: ev.Event | None) -> int:
    """Return how many steps the worker had made after these."""
    return event.first + len(event.began) if isinstance(event, ev.Steps) else 0


def _decoded(line: bytes) -> ev.Event | None:
    try:
        return ev.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return None
