"""The state that the progress display shows, computed from the events so far."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError
from phalanx.observe.events import event_types as ev
from phalanx.observe.summary.history import epoch_row
from phalanx.observe.summary.run_records import read_record

WINDOW_SECONDS = 5.0


class _Position(msgspec.Struct):
    """Of a checkpoint's manifest, how far the training was."""

    epoch: int = 0
    samples: int = 0
    position: int = 0


def trained_before(resume: str | None) -> int:
    """Return how many samples were trained before the checkpoint that a run resumes from; 0 if its
    manifest cannot be read, which the workers report."""
    if resume is None:
        return 0
    try:
        found = read_record(Path(resume) / "manifest.json", _Position)
    except InputError:  # too long
        return 0
    return found.epoch * found.samples + found.position if found else 0


@dataclass(frozen=True)
class _Stretch:
    """Some steps of a worker, in sum."""

    began: float
    ended: float
    samples: int
    seconds: float
    waited: float
    steps: int
    """Without rounds, which are rows without samples."""
    staleness: int

    @classmethod
    def of(cls, steps: ev.Steps) -> _Stretch:
        return cls(
            began=steps.began[0],
            ended=_end(steps),
            samples=sum(steps.samples),
            seconds=sum(map(sum, _columns(steps))),
            waited=sum(steps.wait) + sum(steps.settle),
            steps=sum(map(bool, steps.samples)),
            staleness=sum(steps.staleness),
        )


@dataclass
class WorkerState:
    """One row of the display; figures are of the last few seconds."""

    rank: int
    machine: str = ""
    epoch: int = 0
    loss: float | None = None
    samples: int = 0
    finished: str = ""
    recent: deque[_Stretch] = field(default_factory=deque)

    def take(self, steps: ev.Steps) -> None:
        self.epoch = max(self.epoch, steps.epoch)
        self.samples += sum(steps.samples)
        known = [loss for loss in steps.loss if loss is not None]
        self.loss = known[-1] if known else self.loss
        if steps.began:
            self.recent.append(_Stretch.of(steps))
        while self.recent and self.recent[-1].ended - self.recent[0].ended > WINDOW_SECONDS:
            self.recent.popleft()

    @property
    def rate(self) -> float | None:
        """Samples per second over the last few seconds."""
        if not self.recent:
            return None
        seconds = self.recent[-1].ended - self.recent[0].began
        return sum(s.samples for s in self.recent) / seconds if seconds > 0 else None

    @property
    def waiting(self) -> float | None:
        """The share of its recent time for which the worker waited for others."""
        seconds = sum(s.seconds for s in self.recent)
        return sum(s.waited for s in self.recent) / seconds if seconds > 0 else None

    @property
    def staleness(self) -> float | None:
        steps = sum(s.steps for s in self.recent)
        return sum(s.staleness for s in self.recent) / steps if steps else None


@dataclass(frozen=True)
class EpochLine:
    """What is known about an epoch when it is over; epochs count from 1 here."""

    epoch: int
    loss: float | None
    accuracy: float | None
    accuracy_name: str
    rate: float | None
    elapsed: float
    trained: bool = True
    """``False`` if the run resumed after this epoch, and only evaluated it."""
    step: int | None = None
    """The number of steps so far, in a training without epochs."""


class ProgressState:
    """Takes events, in any order of ranks; has the workers' rows, totals and finished epochs."""

    def __init__(self, epochs: int | None = None) -> None:
        self.epochs = epochs
        self.total_samples: int | None = None
        self.before = 0
        """Samples that an earlier run of this training has trained."""
        self.notes: list[str] = []
        self.workers: dict[int, WorkerState] = {}
        self.logged: dict[str, float] = {}
        self._began: float | None = None
        self._last = 0.0
        self._done: dict[int, list[ev.EpochDone]] = {}
        self._values: dict[int, dict[str, float]] = {}
        self._told = 0

    def take(self, event: ev.Event) -> None:
        if isinstance(event, ev.Joined):
            self._joined(event)
        elif isinstance(event, ev.Planned):
            self._planned(event)
        elif isinstance(event, ev.Steps):
            self._steps(event)
        elif isinstance(event, ev.EpochDone):
            self._done.setdefault(event.epoch, []).append(event)
            self._last = max(self._last, event.time)
        elif isinstance(event, ev.Logged):
            figures = {name: value for name, value in event.values.items() if value is not None}
            self.logged.update(figures)
            self._values.setdefault(event.epoch, {}).update(figures)
        elif isinstance(event, ev.Finished):
            self._worker(event.rank).finished = event.status
        elif isinstance(event, ev.WorkerLost):
            self._worker(event.worker).finished = "lost"
        elif isinstance(event, ev.SamplesSettled):
            self._worker(event.worker).samples = event.trained

    @property
    def samples(self) -> int:
        return sum(worker.samples for worker in self.workers.values())

    @property
    def epoch(self) -> int:
        """The epoch of the first worker, counted from 1."""
        return self.workers[0].epoch + 1 if 0 in self.workers else 1

    @property
    def share(self) -> float | None:
        """How much of the run is done, 0 to 1."""
        if self.total_samples:
            return min(1.0, (self.before + self.samples) / self.total_samples)
        return min(1.0, len(self._done) / self.epochs) if self.epochs else None

    @property
    def rate(self) -> float | None:
        rates = [w.rate for w in self.workers.values() if w.rate is not None and not w.finished]
        return sum(rates) if rates else None

    @property
    def elapsed(self) -> float:
        return self._last - self._began if self._began is not None else 0.0

    @property
    def remaining(self) -> float | None:
        """The seconds left, estimated from the pace so far (evaluation included)."""
        share = self.share
        if not share or self.elapsed <= 0:
            return None
        here = share - (self.before / self.total_samples if self.total_samples else 0.0)
        return self.elapsed * (1 - share) / here if here > 0 else None

    def finished_epochs(self, *, ended: bool = False) -> list[EpochLine]:
        """Return the epochs not shown yet that are over; if the run has ``ended``, all of them."""
        lines = []
        while self._is_over(self._told, ended):
            if self._told in self._done:
                lines.append(self._line(self._told))
            self._told += 1
        return lines

    def _is_over(self, epoch: int, ended: bool) -> bool:
        newest = max((*self._done, *self._values), default=-1)
        if epoch > newest:
            return False
        # The worker that evaluates an epoch logs it before ending the next one.
        if ended or epoch < self._everyone_past():
            return True
        ended_by = {part.rank for part in self._done.get(epoch, ())}
        return self._has_figures(epoch) and bool(ended_by) and self._going <= ended_by

    @property
    def _going(self) -> set[int]:
        """The ranks of all workers that are not lost."""
        return {rank for rank, worker in self.workers.items() if worker.finished != "lost"}

    def _has_figures(self, epoch: int) -> bool:
        """Whether every figure that this run logs was logged in ``epoch``."""
        names = {name for values in self._values.values() for name in values}
        return epoch in self._values and names <= self._values[epoch].keys()

    def _everyone_past(self) -> int:
        """Return the newest epoch that every worker has ended, or -1."""
        ends: dict[int, int] = {}
        for part in (part for parts in self._done.values() for part in parts):
            ends[part.rank] = max(part.epoch, ends.get(part.rank, -1))
        if not self._going <= ends.keys():
            return -1
        return min((ends[rank] for rank in self._going), default=-1)

    def _line(self, epoch: int) -> EpochLine:
        parts = self._done[epoch]
        row = epoch_row(parts, self._values.get(epoch, {}), self._began)
        names = ("test_accuracy", "validation_accuracy")
        name = next((n for n in names if row[n] is not None), "train_accuracy")
        elapsed = row["seconds"]
        return EpochLine(
            epoch=epoch + 1,
            loss=row["train_loss"],
            accuracy=row[name],
            accuracy_name=name.replace("_", " "),
            rate=row["samples_per_second"],
            elapsed=max(p.seconds for p in parts) if elapsed is None else elapsed,
            trained=not self.before or any(part.samples for part in parts),
            step=next((part.step for part in parts if part.step is not None), None),
        )

    def _joined(self, event: ev.Joined) -> None:
        worker = self._worker(event.rank)
        worker.machine, worker.finished = event.machine, ""
        if event.rank == 0:
            self.notes = list(event.notes)

    def _planned(self, event: ev.Planned) -> None:
        self._began = event.time if self._began is None else min(self._began, event.time)
        if event.rank != 0:
            return
        # A script may train more than once: the epochs of the next training are numbered on.
        ended = (n for n, parts in self._done.items() if any(part.rank == 0 for part in parts))
        before = 1 + max(ended, default=-1)
        epochs = event.epochs or (self.epochs if not before else None)
        self.epochs = before + epochs if epochs else None
        done = self.samples if before else 0
        self.total_samples = done + event.samples * epochs if epochs else None

    def _steps(self, event: ev.Steps) -> None:
        worker = self._worker(event.rank)
        worker.take(event)
        if worker.recent:
            self._last = max(self._last, worker.recent[-1].ended)
            if self._began is None:
                self._began = worker.recent[0].began

    def _worker(self, rank: int) -> WorkerState:
        return self.workers.setdefault(rank, WorkerState(rank))


def _columns(steps: ev.Steps) -> tuple[list[float], ...]:
    return (
        steps.input, steps.compute, steps.send, steps.wait, steps.reduce, steps.update, steps.settle
    )  # fmt: skip


def _end(steps: ev.Steps) -> float:
    return steps.began[-1] + sum(column[-1] for column in _columns(steps))
