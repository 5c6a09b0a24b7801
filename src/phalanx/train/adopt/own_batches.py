"""The steps of a script that makes its batches itself, of which nothing else is known.

They are taken in passes of so many steps, so that such a training has figures, checkpoints and
places where it can be stopped, as one that goes through its data in epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from phalanx.train.loop.stretches import WorkerParts
from phalanx.train.loop.training_loop import TrainingLoop
from phalanx.train.whole.plain_pass import PlainPass
from phalanx.train.whole.whole_engine import WholeEngine

FIRST, MOST = 50, 800
"""Steps of the first pass, and of a later one: each is twice as long as the one before."""
_END = object()


class OwnBatches:
    def __init__(self, parts: WorkerParts, loop: TrainingLoop, engine: WholeEngine) -> None:
        self._steps, self._stopwatch = parts.steps, parts.stopwatch
        self._loop, self._engine = loop, engine
        self._length = FIRST
        self._pass: Iterator[Any] | None = None

    def enter(self) -> None:
        """The script is training, outside of any loop over a loader."""
        if self._pass is None:
            plain = PlainPass.of_steps(self._length)
            self._length = min(MOST, 2 * self._length)
            self._pass = self._loop.through_adopted(plain, plain.order, 1)
            next(self._pass)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.enter()
        assert self._pass is not None
        self._stopwatch.recount(self._engine.rows_since_step())
        self._steps.step(optimizer)
        if not self._loop.own_steps:  # it was computed before the workers had joined
            self._engine.align()
        self._loop.own_steps += 1
        if next(self._pass, _END) is _END:
            self._pass = None
            self.enter()

    def leave(self) -> None:
        """The script begins a loop over a loader, or has ended."""
        begun, self._pass = self._pass, None
        if begun is not None:
            begun.close()  # type: ignore[attr-defined]
