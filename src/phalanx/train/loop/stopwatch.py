"""Stamps of the step under way, and the sums of the epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from phalanx.observe.events.emit import EventWriter
from phalanx.sync.arena.clock import Clock
from phalanx.sync.strategies.strategy import Timing


@dataclass
class EpochSums:
    """What this rank saw of an epoch."""

    samples: int = 0
    losses: int = 0
    loss: float | Tensor = 0.0
    judged: int = 0
    correct: float | Tensor = 0.0

    def judge(self, outputs: Tensor, targets: Tensor) -> None:
        """``outputs`` are scores of classes."""
        right = (outputs.detach().argmax(1) == targets).sum()
        if isinstance(self.correct, Tensor):
            self.correct.add_(right)
        else:
            self.correct = self.correct + right
        self.judged += len(targets)

    def add_loss(self, value: Tensor, samples: int) -> None:
        """On the value's device, in one operation."""
        if not isinstance(self.loss, Tensor):
            self.loss = torch.full_like(value, self.loss, dtype=torch.float32)
        self.loss.add_(value, alpha=samples)

    def mean_loss(self) -> float | None:
        return float(self.loss) / self.losses if self.losses else None

    def accuracy(self) -> float | None:
        return float(self.correct) / self.judged if self.judged else None


@dataclass
class Stopwatch:
    """One step begins when data are asked for and ends when the parameters are updated."""

    clock: Clock
    writer: EventWriter
    epoch: int = 0
    sums: EpochSums = field(default_factory=EpochSums)
    bytes_sent: int = 0
    _began: float | None = None
    _input: float = 0.0
    _samples: int = 0
    _batch: int = 0
    loss_samples: int | None = None
    """Of the batch in hand, those that its loss is the mean of, where these are fewer."""
    _loss: float | None = None
    _losses: list[tuple[float | Tensor, int]] = field(default_factory=list)
    """Of the step in hand: they count when it does."""
    _last: float = 0.0

    def asked(self) -> float:
        """The worker asks for its next batch."""
        now = self.clock.now()
        if self._began is None:
            self._began = now
        return now

    def received(self, asked: float, samples: int) -> None:
        self._input += self.clock.now() - asked
        self._samples += samples
        self._batch, self.loss_samples = samples, None
        self.sums.samples += samples

    def loss(self, error: Tensor, *, summed: bool = False) -> None:
        """The mean loss of the batch in hand; of one that is ``summed``, per sample."""
        samples = self._batch if self.loss_samples is None else self.loss_samples
        value = error.detach() / max(1, samples) if summed else error
        if value.is_cpu:  # reading it elsewhere would make the host wait
            self._loss = value.item()
            self._losses.append((self._loss, samples))
        else:
            self._losses.append((value.detach(), samples))

    def lost_its_loss(self) -> bool:
        """Whether a loss of the step in hand is not finite."""
        return any(not math.isfinite(float(value)) for value, _ in self._losses)

    def _count_losses(self, scale: float, refused: bool) -> None:
        for value, samples in self._losses:
            if refused and not math.isfinite(float(value)):
                continue  # the step did not count, and would make the epoch's mean unknown
            self.sums.losses += samples
            if isinstance(value, float):
                self.sums.loss += value / scale * samples
            else:
                self.sums.add_loss(value / scale if scale != 1.0 else value, samples)
        self._losses.clear()
        self._loss = None if self._loss is None else self._loss / scale

    @property
    def batch_samples(self) -> int:
        """Of the batch in hand."""
        return self._batch

    def judge(self, outputs: Tensor, targets: Tensor) -> None:
        if self._batch:
            self.sums.judge(outputs, targets)

    def worked(self) -> tuple[int, float]:
        """Samples of the step in hand, and the seconds since it began."""
        began = self._last if self._began is None else self._began
        return self._samples, max(0.0, self.clock.now() - began)

    def agreed(self, began: float, timing: Timing) -> None:
        """Workers that train apart have come together, since ``began``."""
        self.writer.step((
            self.epoch, began, 0, 0.0, 0.0, timing.send, timing.wait,
            timing.reduce, timing.update, timing.settle, 0, None,
        ))  # fmt: skip
        self.bytes_sent += timing.bytes_sent

    def stepped(self, ready: float, timing: Timing, scale: float = 1.0) -> None:
        """The exchange that began at ``ready`` (the gradient is there) is over.

        ``scale`` is what the script has multiplied its losses by.
        """
        self._count_losses(scale, timing.refused is not None)
        began = self._last if self._began is None else self._began
        compute = max(0.0, ready - began - self._input)
        self.writer.step((
            self.epoch, began, self._samples, self._input, compute, timing.send, timing.wait,
            timing.reduce, timing.update, timing.settle, timing.staleness, self._loss,
        ))  # fmt: skip
        self.bytes_sent += timing.bytes_sent
        self._last = self.clock.now()
        self._began, self._input, self._samples, self._loss = None, 0.0, 0, None

    def next_epoch(self, epoch: int) -> None:
        self.epoch, self.sums = epoch, EpochSums()
