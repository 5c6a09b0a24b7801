"""What a worker tells of its epochs: figures, the best of them, and the events around them."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from phalanx.adapters.torch_models import save_state, state_of
from phalanx.observe.events import event_types as events
from phalanx.observe.events.event_types import (
    Balanced,
    EpochDone,
    Logged,
    Planned,
    Saved,
    WorkerLost,
)
from phalanx.sync.arena.remote.coordinator_messages import Lost
from phalanx.sync.policy.balance import Change
from phalanx.sync.policy.samples_in_hand import Settled
from phalanx.train.api.metrics import is_classification, logits_of
from phalanx.train.checkpoint.checkpointing import Checkpointer, History, Resumed
from phalanx.train.loop.best_model import Best
from phalanx.train.loop.evaluation import Evaluator
from phalanx.train.loop.passes import Pass
from phalanx.train.loop.stopwatch import Stopwatch
from phalanx.train.start.environment import Environment
from phalanx.train.start.lifecycle import Lifecycle


class Figures:
    def __init__(
        self,
        environment: Environment,
        models: Sequence[nn.Module],
        stopwatch: Stopwatch,
        lifetime: Lifecycle,
        evaluator: Evaluator,
        checkpoints: Checkpointer,
        resumed: Resumed | None,
    ) -> None:
        self.history: History = resumed.history if resumed else []
        self.best = Best(evaluator.engine)
        self.best.before = resumed.best if resumed else None
        self.epoch = 0
        self.epochs: int | None = None
        self.evaluated = False
        """Whether anything was, in this epoch."""
        self._environment, self._models, self._lifetime = environment, models, lifetime
        self._stopwatch, self._writer, self._clock = stopwatch, stopwatch.writer, stopwatch.clock
        self._evaluator, self._checkpoints = evaluator, checkpoints
        self._planned, self._resumed = False, resumed
        self._said: set[str] = set()
        checkpoints.figures = self._kept

    def say_once(self, line: str) -> None:
        """What changes the mathematics, where the first worker's output is seen."""
        if self._environment.rank == 0 and line not in self._said:
            self._said.add(line)
            print(f"phalanx: {line}", file=sys.stderr, flush=True)

    def told(self, epoch: int) -> int:
        """Epochs go on counting when a script trains several models, one after another."""
        return self._lifetime.epochs_before + epoch

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.evaluated = epoch, False
        self._stopwatch.next_epoch(self.told(epoch))

    def end_epoch(self, epoch: int, began: float, rate: float) -> None:
        sums, now = self._stopwatch.sums, self._clock.now()
        self._writer.emit(
            EpochDone(
                time=now,
                rank=self._environment.rank,
                epoch=self.told(epoch),
                seconds=now - began,
                samples=sums.samples,
                train_loss=sums.mean_loss(),
                train_accuracy=sums.accuracy(),
                rate=rate,
            )
        )

    def plan(self, current: Pass) -> None:
        """Told once: how long the training is."""
        if self._planned:
            return
        self._planned = True
        self._writer.emit(
            Planned(
                time=self._clock.now(),
                rank=self._environment.rank,
                epochs=self.epochs,
                samples=current.samples,
                batch=current.batch,
            )
        )

    def tell_lost(self, lost: Lost) -> None:
        """The others go on: said where a person looks, and in the record."""
        rank, now = self._environment.rank, self._stopwatch.clock.now()
        self._writer.emit(
            WorkerLost(
                time=now, rank=rank, worker=lost.rank, machine=lost.machine, address=lost.address
            )
        )
        print(
            f"phalanx: worker {lost.rank} on {lost.machine} ({lost.address}) is gone; "
            f"training goes on without it",
            file=sys.stderr,
            flush=True,
        )

    def tell_settled(self, found: Settled) -> None:
        """Its samples are trained by the others; those that cannot be are said."""
        self._writer.emit(
            events.Settled(
                time=self._clock.now(),
                rank=self._environment.rank,
                worker=found.worker,
                epoch=self.told(self.epoch),
                trained=found.trained,
                of_epoch=found.of_pass,
                back=found.back,
                lost=found.lost,
            )
        )
        self._writer.flush()  # at once: what it says is known to this worker alone

    def tell_shares(self, change: Change) -> None:
        self._writer.emit(
            Balanced(
                time=self._clock.now(),
                rank=self._environment.rank,
                epoch=self.told(self.epoch),
                shares=change.shares,
                refused=None if change.shares == change.tried else change.tried,
                rate_before=change.before,
                rate_after=change.after,
            )
        )

    def judge(self, outputs: Any, targets: Any) -> None:
        if is_classification(outputs, targets):
            self._stopwatch.judge(logits_of(outputs), targets)

    def of_training(self) -> dict[str, float]:
        """What this worker saw of the epoch so far."""
        sums = self._stopwatch.sums
        found = {"train_loss": sums.mean_loss(), "train_accuracy": sums.accuracy()}
        return {name: value for name, value in found.items() if value is not None}

    def log(self, values: Mapping[str, float]) -> None:
        numbers: dict[str, float | None] = {n: float(value) for n, value in values.items()}
        self.history.append({"epoch": self.epoch, **numbers})
        self.tell(numbers)
        over, rank = self._lifetime.over, self._environment.rank
        shared = self.evaluated and not over
        if not (self._evaluator.mine(self.epoch) if shared else rank == 0):
            return
        now, epoch = self._clock.now(), self.told(self.epoch)
        self._writer.emit(Logged(time=now, rank=rank, epoch=epoch, values=numbers))
        if not over:
            self._keep_best(numbers.get(self.best.name or ""))

    def tell(self, figures: Mapping[str, float | None]) -> None:
        """Print the epoch's line where nobody else shows progress: outside a run."""
        if self._environment.launched:
            return
        shown = {**self.of_training(), **figures}
        words = "  ".join(f"{n} {value:.4f}" for n, value in shown.items() if value is not None)
        of = f"/{self.epochs}" if self.epochs else ""
        print(f"epoch {self.epoch + 1}{of}  {words}", file=sys.stderr, flush=True)

    def watch(self, name: str, patience: int | None) -> None:
        """Keep the best weights by ``name``; those from before a run was resumed come along."""
        self.best.name, self.best.patience = name, patience
        paths, before = self._environment.paths, self.best.before
        if paths is None or self._environment.rank != 0 or before is None or before.name != name:
            return
        old = self._resumed.best_weights if self._resumed else None
        if old is not None and not paths.best.exists():
            scratch = paths.best.with_suffix(".part")
            with contextlib.suppress(OSError):  # the run before still has them
                shutil.copy2(old, scratch)  # with its time, by which the next run judges it
                scratch.replace(paths.best)

    def _keep_best(self, value: float | None) -> None:
        if value is None:
            return
        if self.best.improves(value, self.epoch):
            if self._environment.paths:
                self._save(self._environment.paths.best)
            self._checkpoints.mark_best(self.best.name or "", value)
        elif self.best.is_hopeless(self.epoch):
            self._evaluator.engine.request_stop(self.epoch)

    def _save(self, path: Path) -> None:
        """What was evaluated: in lockstep the weights still are that."""
        engine = self._evaluator.engine
        with engine.showing(None if engine.lockstep else self._evaluator.snapshot):
            save_state(state_of(self._models), path)
        now, epoch, rank = self._clock.now(), self.told(self.epoch), self._environment.rank
        self._writer.emit(Saved(time=now, rank=rank, path=path.name, epoch=epoch))

    def _kept(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        best = self.best.so_far()
        return {
            "history": list(self.history),
            "best": msgspec.to_builtins(best) if best else None,
        }
