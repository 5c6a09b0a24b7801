"""Plain torch beside a run: both see the same samples in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from ranks import as_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.data.reader import order

FEATURES, CLASSES, SEED = 5, 3, 11
SAMPLES, BATCH = 43, 8


class PlainRun:
    """Torch alone, with the methods of a run: what a script is given that joins."""

    is_first = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **_: Any) -> None:
        self._model, self._optimizer, self._passes = model, optimizer, 0

    def epochs(self, count: int) -> Iterable[int]:
        return range(count)

    def batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        data: Any = loader.dataset
        shuffles = not isinstance(loader.sampler, SequentialSampler)
        numbers = order(len(data), SEED, self._passes, shuffles)
        self._passes += 1
        for part in numbers.split(loader.batch_size or 1):
            if len(part) == loader.batch_size or not loader.drop_last:
                yield loader.collate_fn([data[int(number)] for number in part])

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, clip: float | None = None, scaler: Any = None) -> None:
        """``run.step`` clips, and drops the gradients too."""
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(
                [p for group in self._optimizer.param_groups for p in group["params"]], clip
            )
        if scaler is None:
            self._optimizer.step()
        else:
            scaler.step(self._optimizer)
            scaler.update()
        self._optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, metric: Callable[[Tensor, Tensor], Tensor], data: Any) -> float:
        x, y = data.tensors
        self._model.eval()
        figure = float(metric(self._model(x), y))
        self._model.train()
        return figure


def linear() -> nn.Linear:
    """The smallest model, with the same weights every time."""
    model = nn.Linear(FEATURES, CLASSES).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-1, 1 + number, parameter.numel()).view_as(parameter))
    return model


def data_of(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (samples,), generator=generator)


def as_workers(
    workers: int, folder: Path, work: Callable[[int], Any], **settings: Any
) -> list[Any]:
    """``work`` on every rank, with the order of samples that plain torch is given here."""
    return as_ranks(workers, folder, work, RunSettings(seed=SEED, **settings))


def first_pass() -> list[tuple[Tensor, Tensor]]:
    """The global batches of the first pass."""
    x, y = data_of()
    return [(x[part], y[part]) for part in order(len(x), SEED, 0).split(BATCH)]


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
        batches = run.batches(data_of(), batch=BATCH)
        ended = loop(models, batches, run.backward, lambda i: run.step(optimizers[i]), run.is_first)
        run.finish()
        return ended

    models, optimizers = made()

    def step(number: int) -> None:
        optimizers[number].step()
        optimizers[number].zero_grad()

    wanted = loop(models, first_pass(), lambda loss: loss.backward(), step, True)
    return as_workers(workers, folder, work), wanted
