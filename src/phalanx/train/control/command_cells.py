"""What workers tell each other outside meetings: figures, shares, and commands.

A command changes how everybody trains (another strategy, a checkpoint), so everybody has to take
it at the same place in the data. The first worker posts it; in lockstep the others hear of it at
their next meeting, free-running ones find that there are no more samples to claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from phalanx.sync.arena.arena import Arena
from phalanx.train.control.rendezvous import FIGURES

TEXT = 512  # bytes of a spec that fit


class Kind(IntEnum):
    SAVE = 1
    SWITCH = 2
    LEAVE = 3
    """A worker is transiently slow: train in the second phase of the spec."""
    RETURN = 4
    REGROUP = 5
    STOP = 6
    """Somebody was told to stop: save, and end together."""


@dataclass(frozen=True)
class Command:
    kind: Kind
    spec: str = ""


class CommandCells:
    def __init__(self, arena: Arena) -> None:
        told = arena.region("board.figures", arena.workers * len(FIGURES), torch.float64)
        self.figures = told.view(arena.workers, -1).numpy()
        self.shares = arena.region("board.shares", arena.workers, torch.float64).numpy()
        self._cells = arena.region("board.command", 2, torch.int64).numpy()  # [number, kind]
        self._text = arena.region("board.text", TEXT, torch.uint8).numpy()
        self._told = arena.region("board.told to stop", arena.workers, torch.uint8).numpy()
        self._rank = arena.rank

    @property
    def number(self) -> int:
        """Of the newest command; they count from 1."""
        return int(self._cells[0])

    def ask_to_stop(self) -> None:
        """This worker was told to stop; the first one sees it when it looks next."""
        self._told[self._rank] = 1

    @property
    def stop_is_asked(self) -> bool:
        return 1 in self._told.tobytes()

    def post(self, command: Command) -> None:
        text = command.spec.encode()[:TEXT].ljust(TEXT, b"\0")
        self._text[:] = list(text)
        self._cells[1] = command.kind
        self._cells[0] += 1

    def read(self) -> Command:
        text = bytes(self._text.tolist()).rstrip(b"\0").decode()
        return Command(Kind(int(self._cells[1])), text)
