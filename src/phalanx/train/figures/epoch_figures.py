"""Logs and prints the figures of each epoch, and keeps the best of them."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phalanx.adapters.torch_models import save_state, state_of
from phalanx.observe.events import event_types
from phalanx.train.checkpoint.checkpointing import Checkpointer, Trained
from phalanx.train.figures.evaluation import Evaluator, Question
from phalanx.train.figures.model_calls import is_classification, logits_of
from phalanx.train.figures.training_events import TrainingEvents
from phalanx.train.samples.epoch_batches import Pass
from phalanx.train.start.environment import Environment
from phalanx.train.start.lifecycle import Lifecycle
from phalanx.train.step.stopwatch import Stopwatch


class Figures:
    def __init__(
        self,
        environment: Environment,
        trained: Trained,
        stopwatch: Stopwatch,
        lifecycle: Lifecycle,
        events: TrainingEvents,
        evaluator: Evaluator,
        checkpointer: Checkpointer,
        best_before: Path | None,
    ) -> None:
        """``best_before``: the best weights of the run that this one goes on from."""
        self.history, self.best = trained.history, trained.best
        self.callbacks: list[Callable[[dict[str, float | int | None]], object]] = []
        self.epoch = 0
        self.epochs: int | None = None
        self.evaluated = False
        """Whether anything was evaluated in this epoch."""
        self._environment, self._models, self._lifecycle = environment, trained.models, lifecycle
        self._stopwatch, self._events = stopwatch, events
        self._evaluator, self._checkpointer = evaluator, checkpointer
        self._planned, self._best_before = False, best_before
        self._said: set[str] = set()
        self._taken = -1

    def say_once(self, line: str) -> None:
        """Print and record a line about the mathematics once, on the first worker."""
        if self._environment.rank == 0 and line not in self._said:
            self._said.add(line)
            self._events.emit(event_types.Noted, text=line)
            print(f"phalanx: {line}", file=sys.stderr, flush=True)

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.evaluated = epoch, False
        self._events.begin_epoch(epoch)

    def plan(self, current: Pass) -> None:
        """Report, once, how long the training is."""
        if not self._planned:
            self._planned = True
            self._events.emit(
                event_types.Planned,
                epochs=self.epochs, samples=current.samples, batch=current.batch,
            )  # fmt: skip

    def ask(self, asked: Question, *, wait: bool) -> list[float] | None:
        """Return averages over data; ``None`` if another worker makes them, without ``wait``."""
        clock, began = self._stopwatch.clock, self._stopwatch.clock.now()
        self.evaluated = True
        if self._lifecycle.over:
            values: list[float] | None = self._evaluator.alone(asked)
        else:
            values = self._evaluator.run(self.epoch, asked, wait=wait)
        self._take_time()
        self._lifecycle.spend("evaluate", clock.now() - began)
        return values

    def _take_time(self) -> None:
        """Add an evaluation's seconds to virtual time, once an epoch, on each that evaluates."""
        virtual, chosen = self._environment.virtual, self._environment.settings.virtual
        if virtual is None or chosen is None or self._taken == self.epoch:
            return
        engine = self._evaluator.engine
        if engine.lockstep or self._evaluator.mine(self.epoch):
            self._taken = self.epoch
            seconds = chosen.workers[virtual.rank].evaluate
            virtual.sleep(seconds / engine.workers if engine.lockstep else seconds)

    def judge(self, outputs: Any, targets: Any) -> None:
        if is_classification(outputs, targets) and self._stopwatch.batch_samples:
            self._stopwatch.sums.judge(logits_of(outputs), targets)

    def of_training(self) -> dict[str, float]:
        """Return what this worker saw of the epoch so far."""
        sums = self._stopwatch.sums
        found = {"train_loss": sums.mean_loss(), "train_accuracy": sums.accuracy()}
        return {name: value for name, value in found.items() if value is not None}

    def log(self, values: Mapping[str, float]) -> None:
        numbers: dict[str, float | None] = {n: float(value) for n, value in values.items()}
        self.history.append({"epoch": self.epoch, **numbers})
        self.tell(numbers)
        over, rank = self._lifecycle.over, self._environment.rank
        shared = self.evaluated and not over
        if not (self._evaluator.mine(self.epoch) if shared else rank == 0):
            return
        self._events.emit(event_types.Logged, epoch=self._events.epoch, values=numbers)
        if not over:
            self._keep_best(numbers.get(self.best.name or ""))

    def end_epoch(self, rate: float) -> None:
        """Call the script's callbacks, on the first worker, with what it knows of the epoch."""
        if not self.callbacks or self._environment.rank:
            return
        row: dict[str, float | int | None] = {
            "epoch": self.epoch, **self.of_training(), "rate": rate,
            "gradient_norm": self._stopwatch.sums.mean_norm(),
        }  # fmt: skip
        for logged in self.history:
            row |= logged if logged["epoch"] == self.epoch else {}
        for callback in self.callbacks:
            callback(dict(row))

    def tell(self, figures: Mapping[str, float | None]) -> None:
        """Print the epoch's line where nothing else shows progress: outside a run."""
        if self._environment.launched:
            return
        shown = {**self.of_training(), **figures}
        words = "  ".join(f"{n} {value:.4f}" for n, value in shown.items() if value is not None)
        of = f"/{self.epochs}" if self.epochs else ""
        print(f"epoch {self.epoch + 1}{of}  {words}", file=sys.stderr, flush=True)

    def watch(self, name: str, patience: int | None) -> None:
        """Keep the best weights by ``name``, also those from before a run was resumed."""
        if self._environment.settings.profile is not None:
            return  # the run saves nothing
        self.best.name, self.best.patience = name, patience
        paths, before = self._environment.paths, self.best.before
        if paths is None or self._environment.rank != 0 or before is None or before.name != name:
            return
        old = self._best_before
        if old is not None and not paths.best.exists():
            scratch = paths.best.with_suffix(".part")
            with contextlib.suppress(OSError):  # no loss: the run before still has them
                shutil.copy2(old, scratch)  # with its time, by which the next run judges it
                scratch.replace(paths.best)

    def _keep_best(self, value: float | None) -> None:
        if value is None:
            return
        if self.best.improves(value, self.epoch):
            if self._environment.paths:
                # Save the weights that were evaluated: in lockstep, the models still have them.
                engine = self._evaluator.engine
                with engine.model.showing(None if engine.lockstep else self._evaluator.snapshot):
                    save_state(state_of(self._models), self._environment.paths.best)
                best = self._environment.paths.best.name
                self._events.emit(event_types.Saved, path=best, epoch=self._events.epoch)
            self._checkpointer.mark_best(self.best.name or "", value)
        elif self.best.is_hopeless(self.epoch):
            self._evaluator.engine.request_stop(self.epoch)
