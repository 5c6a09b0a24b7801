"""Takes the times of the present step, and the sums of the epoch."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from phalanx.observe.events.emit import EventWriter
from phalanx.sync.arena.clock import Clock
from phalanx.sync.strategy import Timing


@dataclass
class EpochSums:
    """Sums of what this rank saw of an epoch."""

    samples: int = 0
    losses: int = 0
    loss: float | Tensor = 0.0
    judged: int = 0
    correct: float | Tensor = 0.0
    norms: int = 0
    norm: float | Tensor = 0.0

    def judge(self, outputs: Tensor, targets: Tensor) -> None:
        """Count right classes; ``outputs`` are their scores."""
        right = (outputs.detach().argmax(1) == targets).sum()
        if isinstance(self.correct, Tensor):
            self.correct.add_(right)
        else:
            self.correct = self.correct + right
        self.judged += len(targets)

    def add_loss(self, value: Tensor, samples: int) -> None:
        """Add a loss to the sum, on the value's device, in one operation."""
        if not isinstance(self.loss, Tensor):
            self.loss = torch.full_like(value, self.loss, dtype=torch.float32)
        self.loss.add_(value, alpha=samples)

    def mean_loss(self) -> float | None:
        return float(self.loss) / self.losses if self.losses else None

    def add_norm(self, norm: float | Tensor) -> None:
        """Add the norm of a step's gradient, where it is: reading it would make a host wait."""
        self.norm = self.norm + norm
        self.norms += 1

    def mean_norm(self) -> float | None:
        return float(self.norm) / self.norms if self.norms else None

    def accuracy(self) -> float | None:
        return float(self.correct) / self.judged if self.judged else None


@dataclass
class Stopwatch:
    """Measures steps, each from asking for data to updated parameters."""

    clock: Clock
    writer: EventWriter
    epoch: int = 0
    sums: EpochSums = field(default_factory=EpochSums)
    bytes_sent: int = 0
    _began: float | None = None
    _input: float = 0.0
    _samples: int = 0
    batch_samples: int = 0
    """This worker's samples of the current batch."""
    batch_before: int = 0
    """This worker's samples of the previous batch."""
    batches: int = 0
    loss_samples: int | None = None
    """Samples of the current batch over which its loss is the mean, if they are fewer."""
    _loss: float | None = None
    _losses: list[tuple[float | Tensor, int]] = field(default_factory=list)
    """Losses of the current step, which count if the step does."""
    _unjudged: deque[tuple[EpochSums, list[tuple[float | Tensor, int]]]] = field(
        default_factory=deque
    )
    """Losses of earlier steps that a GPU may have skipped."""
    _last: float = 0.0

    def asked(self) -> float:
        """Return the time at which the worker asks for its next batch, if there is one."""
        return self.clock.now()

    def received(self, asked: float, samples: int) -> None:
        """Count the batch that was asked for; a step begins with the first that it gets, so that
        what comes between two passes, such as an evaluation, is part of no step."""
        if self._began is None:
            self._began = asked
        self._input += self.clock.now() - asked
        self._samples += samples
        self.batches += 1
        self.batch_before, self.batch_samples = self.batch_samples, samples
        self.loss_samples = None
        self.sums.samples += samples

    def recount(self, samples: int) -> None:
        """Correct the samples of the present batch."""
        self.sums.samples += samples - self.batch_samples
        self._samples += samples - self.batch_samples
        self.batch_samples = samples

    def loss(self, error: Tensor, *, summed: bool = False) -> None:
        """Add the loss of the present batch, a mean, or ``summed`` over the samples."""
        samples = self.batch_samples if self.loss_samples is None else self.loss_samples
        value = error.detach() / max(1, samples) if summed else error
        if value.is_cpu:  # reading it elsewhere would make the host wait
            self._loss = value.item()
            self._losses.append((self._loss, samples))
        else:
            self._losses.append((value.detach(), samples))

    def lost_its_loss(self) -> bool:
        """Whether a loss of the oldest step that is not judged yet is not finite."""
        losses = self._unjudged[0][1] if self._unjudged else self._losses
        return any(not math.isfinite(float(value)) for value, _ in losses)

    def judged(self, timing: Timing) -> None:
        """Count the losses of the oldest step; if it was refused, leave out infinite ones."""
        sums, losses = self._unjudged.popleft()
        for value, samples in losses:
            if timing.refused is not None and not math.isfinite(float(value)):
                continue  # the step did not count, and would make the epoch's mean unknown
            sums.losses += samples
            if isinstance(value, float):
                sums.loss += value * samples
            else:
                sums.add_loss(value, samples)

    def worked(self) -> tuple[int, float]:
        """Return the samples of the present step, and the seconds since it began."""
        began = self._last if self._began is None else self._began
        return self._samples, max(0.0, self.clock.now() - began)

    def agreed(self, began: float, timing: Timing) -> None:
        """Record the end of a round of training apart, whose exchange began at ``began``."""
        self.writer.rows.append((
            self.epoch, began, 0, 0.0, 0.0, timing.send, timing.wait,
            timing.reduce, timing.update, timing.settle, 0, None, 0.0,
        ))  # fmt: skip
        self.bytes_sent += timing.bytes_sent

    def stepped(self, ready: float, timing: Timing, scale: float = 1.0) -> None:
        """End a step whose exchange began at ``ready``, when its gradient was there. ``scale`` is
        the factor by which the script multiplied its losses."""
        losses, self._losses = self._losses, []
        if scale != 1.0:
            losses = [(value / scale, samples) for value, samples in losses]
            self._loss = None if self._loss is None else self._loss / scale
        self._unjudged.append((self.sums, losses))
        if timing.judged:
            self.judged(timing)
        if timing.norm is not None:
            self.sums.add_norm(timing.norm)
        began = self._last if self._began is None else self._began
        compute = max(0.0, ready - began - self._input - timing.before)
        self.writer.rows.append((
            self.epoch, began, self._samples, self._input, compute, timing.send, timing.wait,
            timing.reduce, timing.update, timing.settle, timing.staleness, self._loss,
            timing.hidden,
        ))  # fmt: skip
        self.bytes_sent += timing.bytes_sent
        self._last = self.clock.now()
        self._began, self._input, self._samples, self._loss = None, 0.0, 0, None
