"""``Run``: the object by which a training script talks to Phalanx."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.train.checkpoint.kept_state import Keeper
from phalanx.train.figures import gathered_values as gathered
from phalanx.train.figures.evaluation import Means, Question
from phalanx.train.figures.model_calls import Forward, Metric, call_model, whole_set
from phalanx.train.loop.segments import WorkerParts
from phalanx.train.loop.training_loop import TrainingLoop
from phalanx.train.worker.precision import autocast


class Run:
    """This worker's side of the run. Made by :func:`phalanx.join`."""

    def __init__(self, parts: WorkerParts, loop: TrainingLoop) -> None:
        self.environment, self.engine = parts.environment, parts.trained.engine
        self.rank, self.workers = parts.environment.rank, parts.environment.workers
        self.device = parts.environment.device
        self.precision, self.history = parts.precision, parts.trained.history
        self._parts, self._loop = parts, loop
        self._steps, self._figures, self._weight = parts.steps, parts.figures, parts.trained.weight

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def total_epochs(self) -> int | None:
        return self._loop.epochs

    @property
    def folder(self) -> Path:
        """Files written here stay with the run."""
        paths = self.environment.paths
        return paths.files if paths else Path()

    @property
    def data(self) -> Path | None:
        """The folder of the data on this machine, if the command line or the pool names one."""
        return self.environment.data

    @property
    def pending(self) -> int:
        """Batches since the last step, also those this worker had no samples of."""
        return self._weight.pending

    @property
    def samples(self) -> int:
        """Samples of the batch in hand that count as this worker's.

        0 if a last batch has fewer samples than there are workers: then this worker goes through
        the loop with samples of others, and its results do not count.
        """
        return self._parts.stopwatch.batch_samples

    def average_accumulated(self) -> None:
        """Let a step average the batches since the last one; else they add up, as in torch."""
        self._weight.averages = True

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in the run's precision inside this block."""
        return autocast(self.precision, self.device)

    def epochs(self, count: int, stop: int | None = None) -> Iterator[int]:
        """The epochs to train, numbered as by ``range``: ``epochs(10)`` or ``epochs(1, 11)``.

        ``--epochs`` replaces their number.
        """
        first, count = (0, count) if stop is None else (count, stop - count)
        return self._loop.through_epochs(self.environment.settings.epochs or count, first)

    def keep(self, **objects: Keeper) -> None:
        """Save these objects (``state_dict``) with the run, and restore them when it is resumed."""
        self._parts.trained.keepers.update(objects)

    def batches(
        self, data: Any, batch: int | None = None, *, augment: Any = None, fixed: bool = False
    ) -> Iterator[Any]:
        """This worker's batches of one pass over ``data``, on its device.

        ``batch`` is the global one, shared among the workers; a ``DataLoader`` brings its own.
        ``fixed``: in the data's own order; a worker has the same columns of each global batch.
        """
        reader = self._parts.readers.of(data, augment, trains=True, moves=True)
        yield from self._loop.through_batches(reader, batch, fixed=fixed)

    def backward(self, error: Tensor) -> None:
        """Call ``error.backward()``; the value of ``error`` is the training loss in the report.

        In float16 the loss is scaled first: there a plain ``error.backward()`` is refused.
        """
        self._steps.backward(error)

    def step(
        self,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        clip: float | None = None,
        weight: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Agree on the gradient with the others, clip it, update the parameters, zero it.

        ``scaler`` is what the script scaled the loss with; with one optimizer it is updated as
        well. ``--precision float16`` has its own.
        """
        self._steps.step(optimizer, clip=clip, weight=weight, scaler=scaler)

    def stop(self) -> None:
        """End training for all workers at the end of this epoch."""
        if not self._parts.lifecycle.over:
            self.engine.request_stop(self._loop.epoch)

    def finish(self, *, collective: bool = True) -> None:
        """End the training; the model then has its final weights in ordinary tensors."""
        self._loop.finish(collective=collective)

    def evaluate(
        self,
        metric: Metric,
        data: Any,
        *,
        model: nn.Module | None = None,
        whole: bool = False,
        forward: Forward = call_model,
    ) -> float:
        """The mean of ``metric(outputs, targets)`` over ``data``, the same for every worker.

        ``whole``: call the metric once, with all outputs and targets, as if it had ``compute``.
        """
        asked = Question(
            model or self._parts.trained.models[0],
            self._parts.readers.of(data, moves=True),
            lambda outputs, y: [metric(outputs, y)],
            whole_set(metric) if whole or hasattr(metric, "compute") else None,
            forward,
        )
        values = self._ask(asked, wait=True)
        assert values is not None  # it is not ``None``, because this call waits
        return values[0]

    def measure(
        self,
        means: Means,
        data: Any,
        *,
        model: nn.Module | None = None,
        wait: bool = True,
        forward: Forward = call_model,
    ) -> list[float] | None:
        """Several means at once; ``None`` if another worker makes them, without ``wait``."""
        model = model or self._parts.trained.models[0]
        return self._ask(
            Question(model, self._parts.readers.of(data, moves=True), means, forward=forward),
            wait=wait,
        )

    def _ask(self, asked: Question, *, wait: bool) -> list[float] | None:
        with self.autocast():
            return self._figures.ask(asked, wait=wait)

    def gather(self, value: Any) -> list[Any]:
        """The values (numbers, texts, tensors) of all workers by rank; all have to call this."""
        return gathered.gather(value, self._bring_together)

    def reduce(self, value: Any, how: str = "mean") -> Any:
        """The mean, sum, min or max of all workers' values; all have to call this."""
        return gathered.reduce(value, how, self._bring_together)

    def _bring_together(self, mine: bytes) -> list[bytes]:
        over = self._parts.lifecycle.over and self.workers > 1
        return gathered.bring_together(self.engine, mine, self._loop.inside, over)

    def judge(self, outputs: Any, targets: Any) -> None:
        """Count the classes that a training batch got right, if it is about classes."""
        self._figures.judge(outputs, targets)

    def log(self, **values: float) -> None:
        """Log figures of this epoch under any names; they become columns of the report."""
        self._figures.log(values)

    def on_epoch(self, *callbacks: Callable[[dict[str, float | int | None]], object]) -> None:
        """Call ``callbacks`` with the figures of each epoch at its end, on the first worker."""
        self._figures.callbacks += callbacks

    def spend(self, phase: str, seconds: float) -> None:
        """Add to the seconds that a phase of the run took (read, evaluate) on this worker."""
        self._parts.lifecycle.spend(phase, seconds)

    def tell(self, figures: Mapping[str, float | None]) -> None:
        """Print the epoch's line where nothing else shows progress: outside a run."""
        self._figures.tell(figures)

    def save_best(self, name: str, patience: int | None = None) -> None:
        """Keep the weights of the epoch with the best ``name``; stop ``patience`` epochs later."""
        self._figures.watch(name, patience)
