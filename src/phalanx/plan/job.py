"""What a training script costs: measured curves, the same for every plan of it."""

from __future__ import annotations

from typing import Annotated

import msgspec

# Bounds are checked when a file is read, as it may have any content.
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]


class WorkCurve(msgspec.Struct, frozen=True, kw_only=True):
    """A step of ``n`` samples takes ``fixed + each * n`` seconds of one worker."""

    fixed: Seconds
    each: Seconds
    variation: Share = 0.0
    """Standard deviation of a step's seconds, as a share of their mean."""
    error: Share = 0.05
    """Half the width of an interval that contains the mean, as a share of the mean."""
    smallest: int = 1
    largest: int = 1
    """Batches that were measured; beyond them the curve is a guess."""
    extrapolated: bool = False
    """Whether the curve was scaled from another machine by the probe, not measured on this one."""

    def seconds(self, samples: float) -> float:
        return self.fixed + self.each * samples


class MachineCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a job for one worker on one kind of machine."""

    work: WorkCurve
    """Seconds of reading ready data, forward and backward, without optimizer and waiting."""
    update: Seconds
    """Seconds of the optimizer's step on all parameters."""
    input: Seconds = 0.0
    """Seconds per sample that reading adds, if computing does not hide it."""
    evaluate: Seconds = 0.0
    """Seconds of the evaluation after an epoch."""
    start: Seconds = 0.0
    """Seconds from starting the worker until its first step."""
    memory: int | None = None
    """Bytes used at the largest batch that was measured."""


class JobProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The measured profile of a script with its arguments and data."""

    key: str
    """A digest of the script, its arguments and the form of its data."""
    gradient_bytes: Count
    """Bytes that one worker sends in a step without a codec."""
    state_bytes: Count
    """Bytes of parameters, buffers and optimizer state, all of which a checkpoint holds."""
    batch: Count
    samples: Count
    """Samples of an epoch."""
    epochs: Count
    ready: list[tuple[float, float]] = msgspec.field(default_factory=lambda: [(1.0, 1.0)])
    """When gradients are ready, from first to last: a share of the gradient's bytes, and the share
    of a step's computing after which it is ready (for overlap)."""
    elementwise: bool = True
    """Whether the optimizer can run on slices, as the parameter store needs."""
    costs: dict[str, MachineCosts] = {}
    """Costs by machine's name."""

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * -(-self.samples // self.batch)
