"""Where commands come from: the user's ``phalanx switch``, and the time for a checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.spec import parse_spec
from phalanx.sync.arena.clock import Clock
from phalanx.train.checkpoint.checkpointing import Checkpointer
from phalanx.train.control.command_cells import TEXT, Command, Kind
from phalanx.train.loop.schedule import say_refused
from phalanx.train.start.environment import Environment

LOOK_SECONDS = 0.25
MOST_BYTES = 1 << 16

_taken: dict[Path, int] = {}
"""The newest request that was taken, by its file: a script may train several times, and what was
asked for while it still started counts."""


class _Request(msgspec.Struct):
    number: int
    spec: str


class CommandPoller:
    """For the first worker; looks at most four times a second."""

    def __init__(self, environment: Environment, clock: Clock, checkpoints: Checkpointer) -> None:
        self._path = environment.paths.switch if environment.paths else None
        self._clock, self._checkpoints = clock, checkpoints
        self._looked = clock.now()
        self._workers = environment.workers

    def look(self) -> Command | None:
        now = self._clock.now()
        if now - self._looked < LOOK_SECONDS:
            return None
        self._looked = now
        return self._switch() or (Command(Kind.SAVE) if self._checkpoints.is_due() else None)

    def _switch(self) -> Command | None:
        if self._path is None or self._workers == 1 or (request := self._read()) is None:
            return None
        if request.number <= _taken.get(self._path, 0):
            return None
        _taken[self._path] = request.number
        try:
            parse_spec(request.spec)  # what the training itself cannot follow, all find out alike
            if len(request.spec.encode()) >= TEXT:
                raise InputError("the strategy is too long to be passed on", "Use fewer phases.")
        except InputError as error:  # the command line checks it: this is somebody else's file
            say_refused(error)
            return None
        return Command(Kind.SWITCH, request.spec)

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
