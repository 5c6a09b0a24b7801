"""Reads a worker's events while they are written, without reading all of its steps.

A long run has millions of steps, which the roll-ups add up. Here the newest of them are decoded,
and all other events; of older steps only the samples are counted.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import replace
from pathlib import Path

import msgspec

from phalanx.observe.events import event_types as ev
from phalanx.observe.events.collect import LineTail, decoded
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.summary.progress_state import ProgressState, WorkerState

_STEPS = b'{"type":"steps"'
_NEWEST = 100
"""The most lines of steps that are decoded of the newest chunk."""
_MOST_ROWS = 300
"""How many of its newest steps a worker is judged by."""


class _Counted(msgspec.Struct):
    samples: list[int] = []


_counter = msgspec.json.Decoder(_Counted)


class RankReader:
    """One worker's events: all but its steps in ``log``, and its newest steps."""

    def __init__(self, path: Path, rank: int) -> None:
        self.log = RankLog(rank)
        self.tail = LineTail(path)
        self._newest: deque[ev.Steps] = deque()

    def window(self) -> RankLog:
        """The log with the newest steps."""
        log = replace(self.log, steps=[], rounds=[])
        for steps in self._newest:
            log.add(steps)
        return log

    def read(self, state: ProgressState) -> bool:
        """Read the next part of what is new; return whether there was anything."""
        before, lines = self.tail.size, self.tail.poll()
        if self.tail.size < before:  # another file: a controller reads printed figures anew
            self.log = RankLog(self.log.rank)
        steps = sum(line.startswith(_STEPS) for line in lines)
        older = steps if self.tail.unread else max(0, steps - _NEWEST)
        for line in lines:
            if older and line.startswith(_STEPS):
                older -= 1
                with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                    worker = state.workers.setdefault(self.log.rank, WorkerState(self.log.rank))
                    worker.samples += sum(_counter.decode(line).samples)
                continue
            for event in decoded([line]):
                state.take(event)
                self._keep(event)
        return bool(lines)

    def _keep(self, event: ev.Event) -> None:
        if not isinstance(event, ev.Steps):
            self.log.add(event)
            return
        self._newest.append(event)
        while sum(len(steps.began) for steps in self._newest) > _MOST_ROWS + len(event.began):
            self._newest.popleft()
