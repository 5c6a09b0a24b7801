"""The best model so far, and when to stop waiting for a better one. The same for all workers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from phalanx.train.engine import Engine, SharedEngine

LOCK = 2


def smaller_is_better(name: str) -> bool:
    return any(word in name.lower() for word in ("loss", "error", "perplexity"))


@dataclass
class Watch:
    """What is watched, and for how many epochs without improvement training may go on."""

    name: str
    patience: int | None = None


class BestSoFar:
    """The best value and its epoch, in memory that all workers see."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        shared = isinstance(engine, SharedEngine)
        cells = (
            engine.arena.region("best", 3, torch.float64)  # type: ignore[attr-defined]
            if shared
            else torch.zeros(3, dtype=torch.float64)
        )
        self._cells = cells.numpy()  # [is there one, its value, its epoch]

    def improves(self, name: str, value: float, epoch: int) -> bool:
        """Whether ``value`` is the best so far; if so it is from now on."""
        if isinstance(self._engine, SharedEngine):
            with self._engine.arena.lock(LOCK):
                return self._improves(name, value, epoch)
        return self._improves(name, value, epoch)

    def _improves(self, name: str, value: float, epoch: int) -> bool:
        there, best, _ = self._cells
        better = value < best if smaller_is_better(name) else value > best
        if there and not better:
            return False
        self._cells[:] = (1.0, value, epoch)
        return True

    @property
    def epoch(self) -> int:
        return int(self._cells[2])
