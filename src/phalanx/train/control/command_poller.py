"""Where directives come from: ``phalanx switch``, the time for a checkpoint, a signal to stop."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.spec import parse_spec
from phalanx.sync.arena.clock import Clock
from phalanx.train.control.directives import (
    TEXT,
    Directive,
    DirectiveSource,
    SaveCheckpoint,
    Stop,
    Switch,
)
from phalanx.train.start.environment import Environment
from phalanx.train.start.lifecycle import Lifecycle

LOOK_SECONDS = 0.25
MOST_BYTES = 1 << 16

_taken: dict[Path, int] = {}
"""The newest request that was taken, by its file: a script may train several times, and what was
asked for while it still started counts."""


class _Request(msgspec.Struct):
    number: int
    spec: str


class CheckpointTimer:
    """Says when a checkpoint is due by the minutes."""

    def __init__(self, minutes: float | None) -> None:
        self._seconds = None if minutes is None else 60.0 * minutes
        self._saved_at = time.monotonic()

    def is_due(self) -> bool:
        return self._seconds is not None and self.age >= self._seconds

    @property
    def age(self) -> float:
        """Seconds since the last one, or since the training began."""
        return time.monotonic() - self._saved_at

    def saved(self) -> None:
        self._saved_at = time.monotonic()


class CommandPoller(DirectiveSource):
    """Looks for commands on the first worker, at most four times a second."""

    def __init__(
        self, environment: Environment, clock: Clock, timer: CheckpointTimer, lifecycle: Lifecycle
    ) -> None:
        self._path = environment.paths.switch if environment.paths else None
        self.clock, self._timer, self._lifecycle = clock, timer, lifecycle
        self._looked = clock.now()
        self._rank, self._workers = environment.rank, environment.workers

    @property
    def must_stop(self) -> bool:
        return self._lifecycle.stopped

    def look(self) -> Directive | None:
        if self._lifecycle.stopped:
            return Stop()
        if self._rank:
            return None
        now = self.clock.now()
        if now - self._looked < LOOK_SECONDS:
            return None
        self._looked = now
        return self._switch() or (SaveCheckpoint() if self._timer.is_due() else None)

    def _switch(self) -> Switch | None:
        if self._path is None or self._workers == 1 or (request := self._read()) is None:
            return None
        if request.number <= _taken.get(self._path, 0):
            return None
        _taken[self._path] = request.number
        try:
            parse_spec(request.spec)  # what the training itself cannot follow, all find out alike
            if len(request.spec.encode()) >= TEXT:
                raise InputError("the strategy is too long", "Use fewer phases.")
        except InputError as error:  # the command line checks it: this file is not from there
            say_refused(error)
            return None
        return Switch(request.spec)

    def _read(self) -> _Request | None:
        if self._path is None:
            return None
        try:
            if not self._path.is_file():  # a pipe in its place would stop the training
                return None
            with self._path.open("rb") as file:
                text = file.read(MOST_BYTES)
            return msgspec.json.decode(text, type=_Request)
        except (OSError, ValueError, msgspec.DecodeError, RecursionError):
            return None


def say_refused(error: InputError) -> None:
    with contextlib.suppress(OSError):
        line = f"phalanx: switch refused: {error.cause}; training goes on as before"
        print(line, file=sys.stderr, flush=True)
