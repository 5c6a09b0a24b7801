"""Where a :class:`Script` runs: plain torch, or a run. Both see the same samples in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from plain_scripts import (
    SEED,
    Net,
    Outcome,
    Script,
    data_of,
    model_of,
    optimizer_of,
    scheduler_of,
)
from plain_training import Training
from ranks import as_ranks
from torch import Tensor, nn

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.data.reader import order
from phalanx.train.api.run import Run


@dataclass
class Plain:
    """Torch alone."""

    script: Script
    model: Net
    optimizer: torch.optim.Optimizer
    is_first = True
    _passes = 0

    def epochs(self, count: int) -> Iterable[int]:
        return range(count)

    def batches(self) -> Iterator[Any]:
        x, y = data_of(self.script)
        numbers = order(len(x), SEED, self._passes)
        self._passes += 1
        for part in numbers.split(self.script.batch):
            yield x[part], y[part]

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, clip: float | None, scaler: Any) -> None:
        """``run.step`` clips, and drops the gradients too."""
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(
                [p for g in self.optimizer.param_groups for p in g["params"]], clip
            )
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, metric: Callable[[Tensor, Tensor], Tensor]) -> float:
        x, y = data_of(self.script)
        self.model.eval()
        figure = float(metric(self.model(x), y))
        self.model.train()
        return figure


@dataclass
class Joined:
    """A worker of a run."""

    script: Script
    run: Run
    optimizer: torch.optim.Optimizer

    def __post_init__(self) -> None:
        self.is_first, self._data = self.run.is_first, data_of(self.script)

    def epochs(self, count: int) -> Iterable[int]:
        return self.run.epochs(count)

    def batches(self) -> Iterator[Any]:
        return self.run.batches(self._data, batch=self.script.batch)

    def backward(self, loss: Tensor) -> None:
        if self.script.backward == "run":
            self.run.backward(loss)
        else:
            loss.backward()

    def step(self, clip: float | None, scaler: Any) -> None:
        if scaler is None:
            self.run.step(clip=clip)
        elif self.script.scaled == "plain":
            scaler.step(self.optimizer)
            scaler.update()
        else:  # which updates the scaler too
            self.run.step(clip=clip, scaler=scaler)  # type: ignore[call-arg,unused-ignore]

    def evaluate(self, metric: Callable[[Tensor, Tensor], Tensor]) -> float:
        return self.run.evaluate(metric, self._data)


def train_plain(script: Script) -> Outcome:
    model = model_of(script)
    optimizer = optimizer_of(script, model)
    world = Plain(script, model, optimizer)
    return Training(script, model, optimizer, world, scheduler_of(script, optimizer)).run()


def train_joined(script: Script) -> Outcome:
    """As one worker of the run that the caller was started for."""
    model = model_of(script)
    optimizer = optimizer_of(script, model)
    scheduler = scheduler_of(script, optimizer) if script.scheduler_first else None
    declared: dict[str, Any] = {"loss": "sum"} if script.sums and script.declared else {}
    run = phalanx.join(model, optimizer, **declared)
    scheduler = scheduler or scheduler_of(script, optimizer)
    return Training(script, model, optimizer, Joined(script, run, optimizer), scheduler).run()


def train_workers(
    script: Script, workers: int, folder: Path, strategy: str = "allreduce", **settings: Any
) -> list[Outcome]:
    return as_workers(
        workers, folder, lambda rank: train_joined(script), strategy=strategy, **settings
    )


def as_workers(
    workers: int, folder: Path, work: Callable[[int], Any], **settings: Any
) -> list[Any]:
    """``work`` on every rank, with the order of samples that plain torch is given here."""
    return as_ranks(workers, folder, work, RunSettings(seed=SEED, **settings))


def first_pass(script: Script) -> list[tuple[Tensor, Tensor]]:
    """The global batches of the first pass."""
    x, y = data_of(script)
    return [(x[part], y[part]) for part in order(len(x), SEED, 0).split(script.batch)]


def in_both_worlds(
    folder: Path,
    workers: int,
    make: Callable[[], list[nn.Module]],
    loop: Callable[[Any, Any, Any, Any, bool], Any],
    **options: float,
) -> tuple[list[Any], Any]:
    """What ``loop(models, batches, backward, step, is_first)`` returns: of each worker, and alone.

    Each model has an optimizer (SGD), which ``step`` takes by its number.
    """

    def made() -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        models = make()
        return models, [torch.optim.SGD(model.parameters(), **options) for model in models]

    def work(rank: int) -> Any:
        models, optimizers = made()
        run = phalanx.join(models, optimizers)
        batches = run.batches(data_of(Script()), batch=Script().batch)
        ended = loop(models, batches, run.backward, lambda i: run.step(optimizers[i]), run.is_first)
        run.finish()
        return ended

    models, optimizers = made()

    def step(number: int) -> None:
        optimizers[number].step()
        optimizers[number].zero_grad()

    wanted = loop(models, first_pass(Script()), lambda loss: loss.backward(), step, True)
    return as_workers(workers, folder, work), wanted
