"""Which batch sizes a script is tried at, and for how long. Pure: seconds are given to it.

Sizes take turns in short blocks, so that a machine that becomes slower does so for all of them. The
first steps of a block are warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.settings import ProfileWish
from phalanx.train.profile.curves import Block, StepSeconds

PARTS = (8, 4, 2, 1)
"""Of the script's batch: an eighth, …"""
STEPS_SHARE = 0.7
"""Of the seconds; the rest is for an evaluation."""
_ROUNDS = 6
_LEAST_STEPS = 2
_READY_STEPS = 3
_FAST = 0.05
"""Seconds of a step of which a few more can be spared to warm up."""


class Trial:
    def __init__(self, wish: ProfileWish) -> None:
        self._wish, self._sizes = wish, list[int]()
        self._turn = self._skipped = 0
        self._block = Block(0)
        self.blocks: list[Block] = []
        self._warm_up: list[StepSeconds] = []
        self._started: float | None = None
        self._left = _READY_STEPS
        self.over = False
        """Whether the steps have been measured."""
        self.round = 0
        self._forget()

    def _forget(self) -> None:
        self._began: float | None = None
        self._parts: list[int] = []
        self._input = self._update = 0.0
        self._updated = False

    # -- sizes -------------------------------------------------------------------------------

    def plan(self, batch: int, samples: int, least: int) -> None:
        """Of a pass in batches of ``batch``; a part of one has at least ``least`` samples."""
        if not self._sizes:
            given = self._wish.batches or [batch // part for part in PARTS]
            most = min(batch, samples) if not self._wish.batches else samples
            self._sizes = sorted({min(max(least, size, 1), most) for size in given})

    @property
    def wanted(self) -> int:
        """Samples of the next batch."""
        return self._sizes[-1] if self.looks_at_gradients else self._sizes[self._turn]

    @property
    def looks_at_gradients(self) -> bool:
        """Whether it is measured only when which gradient is there."""
        return self._left < _READY_STEPS

    # -- steps -------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """A batch is asked for: the first of a step, or another one for the same step."""
        if self._started is None:
            self._started = now
        if self._began is None:
            self._began = now

    def received(self, samples: int, seconds: float) -> None:
        self._parts.append(samples)
        self._input += seconds

    def updated(self, seconds: float) -> None:
        self._update += seconds
        self._updated = True

    def drop(self) -> None:
        """The script has left its loop: what is in hand is no whole step."""
        self._forget()

    def end(self, now: float) -> None:
        """The next batch is about to be asked for: the step is over, if there was an update."""
        if not self._updated or self._began is None or self._started is None:
            return
        seconds, alike = now - self._began, len(set(self._parts)) == 1
        compute = max(0.0, seconds - self._input - self._update)
        step = StepSeconds(sum(self._parts), self._input, compute, self._update)
        self._forget()
        spent = now - self._started
        if self.looks_at_gradients:
            self._left -= 1
        elif alike:
            self._note(step, seconds)
            complete = {block.samples for block in self.blocks}
            if spent >= STEPS_SHARE * self._wish.seconds and len(complete) >= len(self._sizes):
                self._left -= 1
        self.over = self._left <= 0 or spent >= self._wish.seconds

    def _note(self, step: StepSeconds, seconds: float) -> None:
        if step.samples != self._block.samples:
            self._block, self._skipped = Block(step.samples), 0
        first = all(block.samples != step.samples for block in self.blocks)
        if not self._block.steps and self._skipped < _warm_up(seconds, first):
            self._skipped += 1
            self._warm_up.append(step)
            return
        if not self._block.steps:
            self.blocks.append(self._block)
        self._block.steps.append(step)
        spent = sum(step.input + step.compute + step.update for step in self._block.steps)
        share = STEPS_SHARE * self._wish.seconds / (_ROUNDS * len(self._sizes))
        if len(self._block.steps) >= _LEAST_STEPS and spent >= share:
            self._turn = (self._turn + 1) % len(self._sizes)
            self.round += self._turn == 0
            if len(self._sizes) == 1:
                self._block = Block(0)

    @property
    def found(self) -> Sequence[Block]:
        """What was measured; where that is nothing, the steps that were to be warm-up."""
        if self.blocks or not self._warm_up:
            return self.blocks
        last = self._warm_up[-1]
        return [Block(last.samples, [last])]

    @property
    def largest(self) -> int:
        """Samples of a step of the script's own batch, as far as it was measured."""
        return max(block.samples for block in self.found)


def _warm_up(seconds: float, first: bool) -> int:
    if seconds > _FAST:
        return 1
    return 5 if first else 2
