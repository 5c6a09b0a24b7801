"""The schedule of a training: says which segment of the data comes next, under which phase.

A pass is cut into segments, the same on all workers, where a phase of the strategy ends, shares
change, or a directive is carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from phalanx.core.errors import InputError
from phalanx.core.spec import Spec, parse_spec
from phalanx.policies.sample_assignment import Segment
from phalanx.policies.switch_points import boundaries, segments
from phalanx.sync.state.shard_optimizer import is_elementwise
from phalanx.train.samples.epoch_batches import Pass

if TYPE_CHECKING:
    from phalanx.policies.lanes import LaneState


@dataclass(frozen=True)
class ResumePoint:
    """The point from which a resumed run continues."""

    epoch: int = 0
    pass_number: int = 0
    position: int = 0
    phase: int = 0
    first_pass: int = 0
    """The number of the first pass of that epoch."""
    lanes: LaneState | None = None
    """Where that pass continues, if its data come in blocks."""


class TrainingSchedule:
    def __init__(
        self,
        spec: Spec,
        resumed_at: ResumePoint | None,
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self.spec, self._optimizers = spec, optimizers
        self.epochs: int | None = None
        self.first_pass = 0
        self.position = 0
        """The samples of the present pass that are used; exact between segments."""
        self._resumed_at, self.start = resumed_at, resumed_at or ResumePoint()
        self.phase = self.start.phase
        self.detour = spec.on_straggler and self.phase == 1
        """Whether all workers train in the second phase because of a straggler."""

    def begin_at(self, current: Pass) -> int:
        """Return where a pass begins: in the middle, if the run was resumed there."""
        start = self._resumed_at
        if start is None or current.number > start.pass_number:
            return 0
        if current.number < start.pass_number:
            return current.samples
        return min(start.position, current.samples)

    def resumes_in(self, current: Pass) -> bool:
        start = self._resumed_at
        return start is not None and current.number == start.pass_number

    def next(self, current: Pass) -> Segment | None:
        """Return the segment that begins at ``position``; ``None`` at the end of the pass."""
        if self.position >= current.samples:
            return None
        if self.spec.on_straggler:
            return Segment(self.position, current.samples, int(self.detour))
        ends = boundaries(self.spec, self.epochs, current.samples, current.batch)
        parts = segments(current.epoch, current.samples, ends)
        part = next(part for part in parts if part.end > self.position)
        return Segment(self.position, part.end, part.phase)

    def follow(self, text: str, current: Pass) -> None:
        """Follow another spec from here on; raise on all workers if this training cannot."""
        spec = parse_spec(text)
        self._check(spec, current)
        if spec.text != self.spec.text:
            self.spec, self.detour = spec, False

    def _check(self, spec: Spec, current: Pass) -> None:
        if any(phase.name == "single" for phase in spec.phases):
            raise InputError("'single' has one worker", "Use another strategy.")
        if current.fixed:
            check_fixed(spec)
        if current.lanes is not None and current.lanes.pinned:
            check_pinned(spec)
        if not spec.on_straggler:
            boundaries(spec, self.epochs, current.samples, current.batch)
        if all(phase.traits.any_optimizer for phase in spec.phases):
            return
        for optimizer in self._optimizers:
            if not is_elementwise(optimizer):
                kind = type(optimizer).__name__
                raise InputError(f"the optimizer {kind} cannot run in the store", "Use allreduce.")


def check_fixed(spec: Spec) -> None:
    """Refuse ``fixed`` columns under a strategy that gives a worker no part of some batches."""
    free = next((phase.label for phase in spec.phases if not phase.traits.lockstep), None)
    if free is not None:
        raise InputError(
            f"fixed=True excludes {free}, where a worker takes the next samples when it is free",
            "Use allreduce, bsp, localsgd or diloco.",
        )


def check_pinned(spec: Spec) -> None:
    """Refuse groups, which share out rows, if each row can be read by one worker only."""
    if any(phase.name == "groups" for phase in spec.phases):
        raise InputError(
            "groups share out batches among their workers, and each worker has rows of its own",
            "Use allreduce, bsp, async, ssp, localsgd or diloco.",
        )
