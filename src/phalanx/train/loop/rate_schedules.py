"""Lets learning-rate schedules that a script advances after each batch count the global progress.

In one process a script calls ``scheduler.step()`` once per batch. A free-running worker has more or
fewer batches of its own: a schedule made for the number of batches would overrun, and the workers'
rates would drift apart. In lockstep every worker has every batch.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from phalanx.train.engine.engine import Engine
from phalanx.train.samples.epoch_batches import Pass

_RUNS: weakref.WeakKeyDictionary[torch.optim.Optimizer, RateSchedules] = weakref.WeakKeyDictionary()


class RateSchedules:
    """The schedulers of one run's optimizers."""

    def __init__(self, engine: Engine, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._engine, self._optimizers = engine, list(optimizers)
        self._counts: dict[LRScheduler, list[int]] = {}
        """How often the script asked each scheduler to advance in a pass, and how often it did."""
        self.batches = self._before = 0
        """The number of this worker's own batches, and of global batches in earlier passes."""
        self._pass: Pass | None = None
        self._start = self.reached = 0
        """Where the pass began, and where the current batch ends."""
        self._advancing = self._held = False
        if engine.workers > 1:
            self.watch()

    def watch(self) -> None:
        for kind in _kinds(LRScheduler):
            _wrap(kind)
        for optimizer in self._optimizers:
            _RUNS[optimizer] = self

    def hold(self) -> None:
        """Hold schedules still: a profile repeats a pass, and a schedule might reach its end."""
        self._held = True
        self.watch()

    def begin_pass(self, current: Pass, start: int) -> None:
        self._pass, self._start = current, start

    def leave_pass(self) -> None:
        """Note that the script left the pass in the middle."""
        self._end_at(self.reached)

    def end_pass(self) -> None:
        """Advance every worker's schedules to the end of the pass."""
        if self._pass is not None:
            self._end_at(self._pass.samples)

    def _end_at(self, end: int) -> None:
        current, self._pass = self._pass, None
        if current is None:
            return
        self._before += math.ceil((end - self._start) / current.batch)
        if not self._engine.lockstep:
            for scheduler in self._counts:
                self._advance(scheduler, self._before)

    def step(self, scheduler: LRScheduler, advance: Callable[[], None]) -> None:
        """Advance ``scheduler`` for the script."""
        if self._held and self._pass is not None:
            return
        own = self._pass is None or self._advancing or self._engine.lockstep
        if own or isinstance(scheduler, ReduceLROnPlateau):
            advance()
            return
        assert self._pass is not None
        self._counts.setdefault(scheduler, [0, 0])[0] += 1
        given = (self.reached - self._start) // self._pass.batch
        self._advance(scheduler, self._before + given)

    def _advance(self, scheduler: LRScheduler, batches: int) -> None:
        """Advance a scheduler by the global ``batches`` instead of this worker's own."""
        counts, self._advancing = self._counts[scheduler], True
        goal = counts[0] * batches // max(1, self.batches)
        try:
            while counts[1] < goal:
                counts[1] += 1
                scheduler.step()
        finally:
            self._advancing = False

    def end(self) -> None:
        for optimizer in self._optimizers:
            _RUNS.pop(optimizer, None)


def _kinds(kind: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


def _wrap(kind: type[LRScheduler]) -> None:
    original = kind.__dict__.get("step")
    if original is None or hasattr(original, "_phalanx_original"):
        return

    @functools.wraps(original)
    def step(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        run = _RUNS.get(self.optimizer)
        if run is None or args or kwargs:
            original(self, *args, **kwargs)
        else:
            run.step(self, lambda: original(self))

    setattr(step, "_phalanx_original", original)  # noqa: B010
    setattr(kind, "step", step)  # noqa: B010
