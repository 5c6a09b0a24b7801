"""Defines directives, which all workers carry out at the same place in the data.

A directive changes how all workers train (another strategy, a checkpoint). The first worker posts
it; in lockstep the others see its number at their next rendezvous, free-running ones when no
samples are left.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import msgspec
import torch

from phalanx.core.errors import InputError
from phalanx.core.spec import parse_spec
from phalanx.sync.arena.arena import Arena
from phalanx.train.control.rendezvous import FIGURES
from phalanx.train.start.environment import Environment
from phalanx.train.start.lifecycle import Lifecycle

TEXT = 512  # most bytes of a spec
LOOK_SECONDS = 0.25
MOST_BYTES = 1 << 16

_taken: dict[Path, int] = {}
"""The newest request taken from each file: a script may train several times, and requests made
during its start count."""


class Kind(IntEnum):
    """The kinds of directives: actions of all workers at the same place in the data."""

    SAVE = 0  # write a checkpoint
    SWITCH = 1  # go on under another strategy
    LEAVE = 2  # a worker is transiently slow: train in the second phase of the spec
    RETURN = 3  # the slow worker recovered: train in the first phase again
    REGROUP = 4  # speeds are known now: form groups by speed
    STOP = 5  # a worker was asked to stop: save, and end together


@dataclass(frozen=True)
class Directive:
    kind: Kind
    spec: str = ""
    """The strategy to switch to."""


class _Request(msgspec.Struct):
    number: int
    spec: str


class CheckpointTimer:
    """Says when a checkpoint is due by time."""

    def __init__(self, minutes: float | None) -> None:
        self._seconds = None if minutes is None else 60.0 * minutes
        self._saved_at = time.monotonic()

    def is_due(self) -> bool:
        return self._seconds is not None and self.age >= self._seconds

    @property
    def age(self) -> float:
        """Seconds since the last checkpoint, or since the training began."""
        return time.monotonic() - self._saved_at

    def saved(self) -> None:
        self._saved_at = time.monotonic()


class CommandPoller:
    """Looks for commands on the first worker, at most four times a second."""

    def __init__(
        self, environment: Environment, timer: CheckpointTimer, lifecycle: Lifecycle
    ) -> None:
        self._path = environment.paths.switch if environment.paths else None
        self._clock, self._timer, self._lifecycle = environment.clock, timer, lifecycle
        self._looked = self._clock.now()
        self._rank, self._workers = environment.rank, environment.workers

    @property
    def must_stop(self) -> bool:
        """Whether this worker was asked to stop."""
        return self._lifecycle.stopped

    def look(self) -> Directive | None:
        """Return the next directive, if any; on workers other than the first, only to stop."""
        if self._lifecycle.stopped:
            return Directive(Kind.STOP)
        if self._rank:
            return None
        now = self._clock.now()
        if now - self._looked < LOOK_SECONDS:
            return None
        self._looked = now
        return self._switch() or (Directive(Kind.SAVE) if self._timer.is_due() else None)

    def _switch(self) -> Directive | None:
        if self._path is None or self._workers == 1 or (request := self._read()) is None:
            return None
        if request.number <= _taken.get(self._path, 0):
            return None
        _taken[self._path] = request.number
        try:
            parse_spec(request.spec)  # what training cannot follow, all workers find out alike
            if len(request.spec.encode()) >= TEXT:
                raise InputError("the strategy is too long", "Use fewer phases.")
        except InputError as error:  # this file is not from the command line, which checks it
            say_refused(error)
            return None
        return Directive(Kind.SWITCH, request.spec)

    def _read(self) -> _Request | None:
        if self._path is None:
            return None
        try:
            if not self._path.is_file():  # it may be a pipe, which would stop the training
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


class DirectiveTaker:
    """Takes the directives of a single worker, between two batches."""

    def __init__(self, source: CommandPoller | None) -> None:
        self.source = source
        self._directive: Directive | None = None

    def look(self) -> None:
        """Look for directives; called in every step."""
        source = self.source
        if source is not None and (self._directive is None or source.must_stop):
            self._directive = source.look()

    @property
    def cut(self) -> bool:
        """Whether, in lockstep, the segment ends with the present batch, or with its round."""
        return self._directive is not None

    def after_segment(self, ticket: int, position: int) -> tuple[int, Directive | None]:
        """Return the position up to which the data have been used (in lockstep ``position``), and
        the directive to carry out there, if any."""
        directive, self._directive = self._directive, None
        return position, directive


class CommandCells:
    """The memory that workers share outside rendezvous: figures, shares, and directives."""

    def __init__(self, arena: Arena) -> None:
        figures = arena.region("control.figures", arena.workers * len(FIGURES), torch.float64)
        self.figures = figures.view(arena.workers, -1).numpy()
        self.shares = arena.region("control.shares", arena.workers, torch.float64).numpy()
        # They are read in every step, where NumPy would be slow.
        self.cells = arena.region("directive", 2, torch.int64).numpy().data
        """The number of the newest directive, counted from 1, and its kind."""
        self._text = arena.region("directive.text", TEXT, torch.uint8).numpy()
        stopping = arena.region("directive.stopping", arena.workers, torch.uint8)
        self.stopping = stopping.numpy().data
        """Whether each worker has to stop; the first worker reads this."""

    def post(self, directive: Directive) -> None:
        self._text[:] = list(directive.spec.encode()[:TEXT].ljust(TEXT, b"\0"))
        self.cells[1] = directive.kind
        self.cells[0] += 1

    def read(self) -> Directive:
        spec = bytes(self._text.tolist()).rstrip(b"\0").decode()
        return Directive(Kind(self.cells[1]), spec)
