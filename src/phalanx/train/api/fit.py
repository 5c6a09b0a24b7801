"""``fit``: the whole training loop, for models that need nothing special."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.settings import COMPILE_MODES, CompileMode
from phalanx.data.load import share
from phalanx.data.reader import Reader, tensors_of
from phalanx.data.structure import map_tensors
from phalanx.train.api.join import join_with
from phalanx.train.api.run import Run
from phalanx.train.figures.model_calls import (
    Forward,
    Metric,
    accuracy,
    call_model,
    is_classification,
    own_loss,
)
from phalanx.train.worker.precision import trial_step

Loss = Callable[[Any, Any], Tensor]
PLATEAU = torch.optim.lr_scheduler.ReduceLROnPlateau
SPLIT_SEED = 20221  # fixed, so that every worker and every run holds out the same samples


@dataclass
class _Loop:
    """Everything that one epoch needs."""

    run: Run
    model: nn.Module
    loss: Loss
    batch: int
    clip: float | None
    accumulate: int
    augment: Any
    metrics: Mapping[str, Metric]
    summed: bool
    forward: Forward

    def train(self, data: Any) -> None:
        self.model.train()
        for batch in self.run.batches(data, self.batch, augment=self.augment):
            with self.run.autocast():
                outputs, y = self.forward(self.model, batch)
                error = self.loss(outputs, y)
            self.run.backward(error)
            self.run.judge(outputs, y)
            if self.run.pending >= self.accumulate:  # the run averages what it accumulated
                self.run.step(clip=self.clip)
        if self.run.pending:
            self.run.step(clip=self.clip)

    def means(self, outputs: Any, y: Any) -> list[Tensor | float]:
        outputs = map_tensors(outputs, lambda t: t.float() if t.is_floating_point() else t)
        error = self.loss(outputs, y)
        found: dict[str, Tensor | float] = {"loss": error / len(y) if self.summed else error}
        if is_classification(outputs, y):
            found["accuracy"] = accuracy(outputs, y)
        found |= {name: metric(outputs, y) for name, metric in self.metrics.items()}
        return list(found.values())

    def measure(self, data: Any, prefix: str, wait: bool) -> dict[str, float]:
        values = self.run.measure(self.means, data, wait=wait, forward=self.forward)
        if values is None:
            return {}
        # Found by number, because a worker that only waited for figures has seen no outputs.
        names = ["loss", "accuracy"][: len(values) - len(self.metrics)] + list(self.metrics)
        return {f"{prefix}_{n}": v for n, v in zip(names, values, strict=True)}


def fit(
    model: nn.Module,
    *,
    optimizer: torch.optim.Optimizer,
    loss: Loss | None = None,
    train: Any,
    test: Any = None,
    epochs: int = 10,
    batch: int | None = None,
    validation: Any = None,
    scheduler: Any = None,
    clip: float | None = None,
    accumulate: int = 1,
    augment: Any = None,
    metrics: Mapping[str, Metric] | None = None,
    best: str | None = None,
    patience: int | None = None,
    forward: Forward = call_model,
    compile: CompileMode = "off",
    callbacks: Sequence[Callable[[dict[str, float | int | None]], object]] = (),
) -> Run:
    """Train ``model`` on ``train`` and evaluate it on ``test`` after every epoch.

    ``batch`` is the global batch, by default the ``DataLoader``'s, or 128; a step takes
    ``accumulate`` of them. ``validation``: a share of ``train`` to hold out, or data of its own.
    ``best`` names the figure by which the best weights are kept (``"test_accuracy"``); training
    stops ``patience`` epochs later. Without ``loss``, the model's outputs need one; ``forward``
    takes model and batch, and returns outputs and targets. The first worker calls ``callbacks``.
    """
    loss = loss or own_loss
    _check(batch, accumulate, clip, patience, metrics or {}, compile)
    batch = batch or getattr(train, "batch_size", None) or 128
    train, held = _hold_out(train, validation)
    share(train, held, test)
    kind = "sum" if getattr(loss, "reduction", "mean") == "sum" else "mean"
    trial = trial_step(model, loss, train, batch, forward)
    run = join_with(model, optimizer, trial=trial, loss=kind, compile=compile)
    run.average_accumulated()
    run.on_epoch(*callbacks)
    loop = _Loop(
        run, model, loss, batch, clip, accumulate, augment, metrics or {}, kind == "sum", forward
    )
    if watched := best or _default_watch(patience, held, test):
        run.save_best(watched, patience)
    if callable(scheduler) and not hasattr(scheduler, "step"):
        scheduler = scheduler(optimizer)
    if scheduler is not None:
        run.keep(scheduler=scheduler)
    for _ in run.epochs(epochs):
        loop.train(train)
        figures: dict[str, float] = {}
        for prefix, data in (("validation", held), ("test", test)):
            if data is not None:
                figures |= loop.measure(data, prefix, wait=isinstance(scheduler, PLATEAU))
        if figures:
            run.log(**figures)
        else:
            run.tell({})
        _advance(scheduler, figures)
    return run


def _check(
    batch: int | None,
    accumulate: int,
    clip: float | None,
    patience: int | None,
    metrics: Mapping[str, Metric],
    compile: str,
) -> None:
    for name, value in (("batch", batch), ("accumulate", accumulate), ("patience", patience)):
        if value is not None and value < 1:
            raise InputError(
                f"fit: invalid {name}={value}", f"Give {name} as a whole number from 1."
            )
    if clip is not None and clip <= 0:
        raise InputError(f"fit: invalid clip={clip}", "Give the largest norm allowed, above 0.")
    if compile not in COMPILE_MODES:
        raise InputError(f"fit: invalid compile='{compile}'", did_you_mean(compile, COMPILE_MODES))
    if taken := {"loss", "accuracy"} & set(metrics):
        raise InputError(
            f"fit: metrics has '{min(taken)}', which fit itself reports", "Give yours another name."
        )


def _default_watch(patience: int | None, held: Any, test: Any) -> str | None:
    if patience is None:
        return None
    if held is None and test is None:
        raise InputError("fit: patience needs a metric to watch", "Give validation= or test=.")
    return "validation_loss" if held is not None else "test_loss"


def _advance(scheduler: Any, figures: dict[str, float]) -> None:
    if scheduler is None:
        return
    if isinstance(scheduler, PLATEAU):
        name = "validation_loss" if "validation_loss" in figures else "test_loss"
        if name not in figures:
            raise InputError("ReduceLROnPlateau needs a metric", "Give validation= or test=.")
        scheduler.step(figures[name])
    else:
        scheduler.step()


def _hold_out(train: Any, validation: Any) -> tuple[Any, Any]:
    """Return ``(train, validation)``; ``validation`` is a share of ``train``, or data."""
    if not isinstance(validation, float | int) or isinstance(validation, bool):
        return train, validation
    if not 0 < validation < 1:
        raise InputError(f"fit: invalid validation={validation}", "Give a share (0 to 1), or data.")
    if isinstance(train, DataLoader):
        raise InputError(
            "fit: a share of a DataLoader cannot be held out",
            "Split its dataset: torch.utils.data.random_split(…), and give validation=.",
        )
    if isinstance(train, Reader):
        raise InputError(
            "fit: a share of data from phalanx.data.read cannot be held out",
            "Put the rows into a file of their own, and give validation=phalanx.data.read(…).",
        )
    tensors = tensors_of(train)
    samples = len(tensors[0]) if tensors else len(train)
    held = max(1, round(samples * validation))
    mixed = torch.randperm(samples, generator=torch.Generator().manual_seed(SPLIT_SEED))
    if tensors:
        return (tuple(t[mixed[held:]] for t in tensors), tuple(t[mixed[:held]] for t in tensors))
    return Subset(train, mixed[held:].tolist()), Subset(train, mixed[:held].tolist())
