"""Keeps the best value so far, and decides when to stop, for all workers alike."""

from __future__ import annotations

import math

import msgspec
import torch

from phalanx.core.settings import smaller_is_better
from phalanx.sync.arena.arena import Locks
from phalanx.train.engine.engine import Engine


class BestSoFar(msgspec.Struct, frozen=True):
    """The best model so far, as a checkpoint records it."""

    name: str
    value: float
    epoch: int


class Best:
    """The watched figure, its best value and that value's epoch, in memory that all workers see."""

    def __init__(self, engine: Engine, before: BestSoFar | None = None) -> None:
        self.name: str | None = None
        self.patience: int | None = None
        self.before = before
        """The best of the resumed run; it counts if the same figure is watched."""
        self._engine = engine
        # [whether there is one, its value, its epoch]
        self._cells = engine.region("best", 3, torch.float64).numpy()

    def improves(self, value: float, epoch: int) -> bool:
        """Whether ``value`` is the best so far; if so, it is kept."""
        assert self.name is not None
        if math.isnan(value):
            return False
        with self._engine.lock(Locks.BEST):
            # Not earlier, because the script may choose the watched figure until now.
            before = self.before
            if before is not None and before.name == self.name and not self._cells[0]:
                self._cells[:] = (1.0, before.value, before.epoch)
            there, best, _ = self._cells
            better = value < best if smaller_is_better(self.name) else value > best
            if there and not better:
                return False
            self._cells[:] = (1.0, value, epoch)
            return True

    def so_far(self) -> BestSoFar | None:
        if self.name is None or not self._cells[0]:
            return self.before
        _, value, epoch = self._cells.tolist()
        return BestSoFar(self.name, value, int(epoch))

    def is_hopeless(self, epoch: int) -> bool:
        """Whether ``patience`` epochs have passed without a better value."""
        if self.patience is None:
            return False
        best = int(self._cells[2]) if self._cells[0] else -1
        return epoch - best >= self.patience
