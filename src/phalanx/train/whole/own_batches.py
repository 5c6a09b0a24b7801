"""The steps of a script that makes its batches itself, of which nothing else is known.

They are taken in passes of so many steps, so that such a training has figures, checkpoints and
places where it can be stopped, as one that goes through its data in epochs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from phalanx.train.loop.segments import WorkerParts
from phalanx.train.loop.training_loop import TrainingLoop
from phalanx.train.step.stepper import watch_backward
from phalanx.train.whole.plain_pass import PlainPass
from phalanx.train.whole.row_plan import rows_in
from phalanx.train.whole.whole_engine import WholeEngine

FIRST, MOST = 50, 800
"""Steps of the first pass, and of a later one: each is twice as long as the one before."""
_END = object()


class OwnBatches:
    def __init__(self, parts: WorkerParts, loop: TrainingLoop) -> None:
        self._steps, self._stopwatch = parts.steps, parts.stopwatch
        self._loop, self._engine = loop, parts.trained.engine
        self._models = {id(model) for model in parts.trained.models}
        self._length = FIRST
        self._pass: Iterator[Any] | None = None
        self._rows, self._counting = 0, False

    def enter(self) -> None:
        """The script is training, outside of any loop over a loader."""
        if self._pass is None:
            self._steps.leave_scalers()
            self._count_rows()
            plain = PlainPass.of_steps(self._length)
            self._length = min(MOST, 2 * self._length)
            self._pass = self._loop.through_adopted(plain, plain.order, 1)
            next(self._pass)

    @property
    def under_way(self) -> bool:
        return self._pass is not None

    def _count_rows(self) -> None:
        """Begin to count the rows that the models are given, on a worker alone."""
        if self._counting or isinstance(self._engine, WholeEngine):
            return
        self._counting, me = True, threading.get_ident()

        def count(module: nn.Module, given: Any) -> None:
            if id(module) in self._models and threading.get_ident() == me:
                self._rows = max(self._rows, rows_in(given))

        register_module_forward_pre_hook(count)

    def step(self, optimizer: torch.optim.Optimizer, *, made: bool = False) -> None:
        """``made``: by the script itself, and only to be counted."""
        self.enter()
        assert self._pass is not None
        engine = self._engine
        rows = engine.rows_since_step() if isinstance(engine, WholeEngine) else self._rows
        self._stopwatch.recount(rows)
        self._rows = 0
        if made:
            self._steps.note()
        else:
            self._steps.step(optimizer)
        if isinstance(engine, WholeEngine) and not self._loop.own_steps:
            engine.align()  # this step was computed before the workers had joined
        self._loop.own_steps += 1
        if next(self._pass, _END) is _END:
            self._pass = None
            self.enter()

    def follow_losses(self, stand_in: torch.optim.Optimizer) -> None:
        """The script updates its parameters itself: a step ends where the next loss goes back."""
        looks, counted = watch_backward(None), self._loop.own_steps

        def look(loss: torch.Tensor, factor: torch.Tensor | None) -> None:
            nonlocal counted
            if counted == self._loop.own_steps and self.under_way:
                self.step(stand_in)  # unless an optimizer that was made meanwhile has done one
            counted = self._loop.own_steps
            if looks is not None:
                looks(loss, factor)

        watch_backward(look)

    def leave(self) -> None:
        """The script begins a loop over a loader, or has ended."""
        begun, self._pass = self._pass, None
        if begun is not None:
            begun.close()  # type: ignore[attr-defined]
