"""What all workers do at the same place in the data, as values, and where that comes from."""

from __future__ import annotations

from dataclasses import dataclass


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


class DirectiveSource:
    """Where a worker's directives come from; this one has none."""

    def look(self) -> Directive | None:
        """Asked at every step, on the first worker."""
        return None

    def must_stop(self) -> bool:
        """Asked at every step, on each worker."""
        return False
