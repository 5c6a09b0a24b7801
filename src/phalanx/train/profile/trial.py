"""Which batch sizes a script is tried at, and for how long. Pure: seconds are given to it.

Sizes take turns in short blocks, so that a machine that becomes slower does so for all of them. The
first steps of a block are warm-up. The largest size comes first: in memory that tensors of other
sizes have left gaps in, the same step may take a tenth longer.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.train.profile.curves import Block, StepSeconds

PARTS = (8, 4, 2, 1)
"""Batch sizes to measure: an eighth of the script's batch, …"""
STEPS_SHARE = 0.7
"""Share of the seconds for steps; the rest is for an evaluation."""
_ROUNDS = 4
_LEAST_STEPS = 2
_FAST = 0.05
"""Seconds of a step of which a few more can be spared to warm up."""


class Trial:
    def __init__(self, seconds: float) -> None:
        self._seconds, self._sizes = seconds, list[int]()
        self._turn = self._skipped = self._batch = self.updates = 0
        self._batches = 1
        self._block: Block = []
        self.blocks: list[Block] = []
        self._warm_up: StepSeconds | None = None
        self._started: float | None = None
        self.over = False
        """Whether the steps have been measured."""
        self.drop()

    def drop(self) -> None:
        """The script has left its loop: what is in hand is no whole step."""
        self._began: float | None = None
        self._parts: list[int] = []
        self._input = 0.0
        self._update: float | None = None

    def plan(self, batch: int, samples: int, least: int) -> None:
        """Plan the sizes to measure in a pass by ``batch``; each has at least ``least`` samples."""
        if not self._sizes:
            self._batch = most = min(batch, samples)
            sizes = {min(max(least, batch // part), most) for part in PARTS}
            self._sizes = sorted(sizes, reverse=True)

    @property
    def wanted(self) -> int:
        """Samples of the next batch."""
        return self._sizes[self._turn]

    @property
    def begins(self) -> bool:
        """Whether the next step is the first of a round: warm-up, at the largest size."""
        return self._turn == 0 and not self._block and not self._skipped

    def begin(self, now: float) -> None:
        """A batch is asked for: the first of a step, or another one for the same step."""
        self._started = now if self._started is None else self._started
        self._began = now if self._began is None else self._began

    def received(self, samples: int, seconds: float) -> None:
        self._parts.append(samples)
        self._input += seconds

    def updated(self, seconds: float) -> None:
        self._update = (self._update or 0.0) + seconds
        self.updates += 1

    def end(self, now: float) -> None:
        """The next batch is about to be asked for: the step is over, if there was an update."""
        if self._update is None or self._began is None or self._started is None:
            return
        parts, seconds = self._parts, now - self._began
        compute = max(0.0, seconds - self._input - self._update)
        step = StepSeconds(sum(parts), self._input, compute, self._update)
        self._batches = len(parts)
        self.drop()
        if len(set(parts)) == 1:
            self._note(step, seconds)
        complete = len({block[0].samples for block in self.blocks}) >= len(self._sizes)
        self.over = now - self._started >= self._seconds * (STEPS_SHARE if complete else 1.0)

    def _note(self, step: StepSeconds, seconds: float) -> None:
        if self._block and step.samples != self._block[0].samples:
            self._block, self._skipped = [], 0
        if not self._block:
            first = all(block[0].samples != step.samples for block in self.blocks)
            if self._skipped < (1 if seconds > _FAST else 5 if first else 2):
                self._skipped += 1
                self._warm_up = step
                return
            self.blocks.append(self._block)
        self._block.append(step)
        spent = sum(step.input + step.compute + step.update for step in self._block)
        share = STEPS_SHARE * self._seconds / (_ROUNDS * len(self._sizes))
        if len(self._block) >= _LEAST_STEPS and spent >= share:
            self._turn = (self._turn + 1) % len(self._sizes)
            self._block, self._skipped = [], 0

    @property
    def found(self) -> Sequence[Block]:
        """What was measured; where that is nothing, the last step that was to be warm-up."""
        return self.blocks or ([[self._warm_up]] if self._warm_up else [])

    @property
    def batch(self) -> int:
        """Samples of a step of the script, which may take several batches."""
        return self._batch * self._batches
