"""What all workers do at the same place in the data, as values, and where that comes from.

A directive changes how all workers train (another strategy, a checkpoint), so all have to take it
at the same place in the data. The first worker posts it; in lockstep the others see its number at
their next rendezvous, free-running ones find that there are no more samples to claim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from phalanx.sync.arena.arena import Arena
from phalanx.train.control.rendezvous import FIGURES

TEXT = 512  # bytes of a spec that fit


@dataclass(frozen=True)
class SaveCheckpoint:
    """Write a checkpoint."""


@dataclass(frozen=True)
class Switch:
    """Go on under another strategy."""

    spec: str


@dataclass(frozen=True)
class Leave:
    """A worker is transiently slow: train in the second phase of the spec."""


@dataclass(frozen=True)
class Return:
    """It is as fast as before: train in the first phase again."""


@dataclass(frozen=True)
class Regroup:
    """Speeds are known by now: make groups by them."""


@dataclass(frozen=True)
class Stop:
    """A worker was asked to stop: save, and end together."""


Directive = SaveCheckpoint | Switch | Leave | Return | Regroup | Stop
_KINDS: tuple[type[Directive], ...] = (SaveCheckpoint, Switch, Leave, Return, Regroup, Stop)


class DirectiveSource:
    """Where a worker's directives come from; this one has none."""

    def look(self) -> Directive | None:
        """Asked at every step, on the first worker."""
        return None

    def must_stop(self) -> bool:
        """Asked at every step, on each worker."""
        return False


class CommandCells:
    """What workers share outside rendezvous: figures, shares of a batch, and directives."""

    def __init__(self, arena: Arena) -> None:
        figures = arena.region("control.figures", arena.workers * len(FIGURES), torch.float64)
        self.figures = figures.view(arena.workers, -1).numpy()
        self.shares = arena.region("control.shares", arena.workers, torch.float64).numpy()
        # [number, kind]; looked at in every step, where NumPy would be slow.
        self._cells = arena.region("directive", 2, torch.int64).numpy().data
        self._text = arena.region("directive.text", TEXT, torch.uint8).numpy()
        self._stopping = arena.region("directive.stopping", arena.workers, torch.uint8).numpy()
        self._rank = arena.rank

    @property
    def number(self) -> int:
        """Of the newest directive; they count from 1."""
        return self._cells[0]

    def ask_to_stop(self) -> None:
        """This worker has to stop; the first one sees it when it looks next."""
        self._stopping[self._rank] = 1

    @property
    def stop_is_asked(self) -> bool:
        return 1 in self._stopping.tobytes()

    def post(self, directive: Directive) -> None:
        spec = directive.spec if isinstance(directive, Switch) else ""
        self._text[:] = list(spec.encode()[:TEXT].ljust(TEXT, b"\0"))
        self._cells[1] = _KINDS.index(type(directive))
        self._cells[0] += 1

    def read(self) -> Directive:
        kind = _KINDS[self._cells[1]]
        if kind is Switch:
            return Switch(bytes(self._text.tolist()).rstrip(b"\0").decode())
        return kind()  # type: ignore[call-arg]
