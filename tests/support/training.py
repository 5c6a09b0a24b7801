"""A small training of several ranks that can be saved, resumed and looked into."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ranks import as_ranks
from torch import Tensor, nn

import phalanx
from phalanx.core import stopping
from phalanx.core.errors import RunStopped
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.train.api.run import Run
from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.checkpoint.tensor_files import load
from phalanx.train.control.directives import Directive
from phalanx.train.engine.model_state import Captured

WITHOUT_END = 1e9  # minutes: checkpoints are possible, and come by command only
FEATURES, CLASSES = 6, 3


class Norm(nn.BatchNorm1d):
    """Takes a single sample too, which torch refuses: the last batch may leave a worker that."""

    def forward(self, input: Tensor) -> Tensor:
        return (
            super().forward(input.repeat(2, 1))[:1] if len(input) == 1 else super().forward(input)
        )


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 9), Norm(9), nn.Tanh(), nn.Linear(9, CLASSES))


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=5e-3)


@dataclass
class Training:
    """What is trained, and how; :meth:`run` does it."""

    folder: Path
    spec: str
    workers: int
    model: Callable[[], nn.Module] = small_model
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = momentum
    samples: int = 77
    epochs: int = 2
    batch: int = 12
    accumulate: int = 1
    seed: int = 0
    commands: dict[int, Directive] = field(default_factory=dict)
    """By the step of the first worker after which it is given."""
    settings: dict[str, Any] = field(default_factory=dict)
    data: Callable[[Training], Any] | None = None
    """What batches are taken from; plain tensors without it."""
    look: bool = False
    """Whether the state is captured before the first step."""
    counted: bool = False
    """Whether each worker has a part of each batch, also where workers run freely."""

    def __post_init__(self) -> None:
        self.models: list[nn.Module] = []
        self.seen: list[list[tuple[int, int]]] = [[] for _ in range(self.workers)]
        self.before_save: list[int] = [0] * self.workers
        self.captured: list[Captured] = []
        self.stopped: list[int] = []
        """Ranks that were stopped."""
        self.at_end: Callable[[Run], None] | None = None
        """Called on each worker after its last batch."""

    def run(self) -> Training:
        torch.manual_seed(3)
        self.models = [self.model() for _ in range(self.workers)]
        self.optimizers = [self.optimizer(model) for model in self.models]
        chosen = RunSettings(
            strategy=self.spec,
            **{"seed": 1, "checkpoint_minutes": WITHOUT_END, "keep": 99, **self.settings},
        )
        try:
            self.captured = as_ranks(
                self.workers, self.folder, self._until_stopped, chosen, self.seed
            )
        finally:
            stopping.forget()
        return self

    def _until_stopped(self, rank: int) -> Captured | None:
        try:
            return self._work(rank)
        except RunStopped:
            self.stopped.append(rank)
            return None

    def _work(self, rank: int) -> Captured | None:
        model, optimizer = self.models[rank], self.optimizers[rank]
        run = phalanx.join(model, optimizer)
        captured = run.engine.capture() if self.look else None
        self._prepare(run)
        for epoch in run.epochs(self.epochs):
            for x, y, numbers in self._batches(run):
                if run.samples:
                    self.seen[rank] += [(epoch, int(n)) for n in numbers]
                run.backward(nn.functional.cross_entropy(model(x), y))
                if run.pending == self.accumulate:
                    run.step()
            if run.pending:
                run.step()
            if self.at_end is not None and epoch == self.epochs - 1:
                self.at_end(run)
        return captured

    def _batches(self, run: Run) -> Any:
        if not self.counted:
            return run.batches(self._data(), batch=self.batch)
        reader = run._parts.readers.of(self._data(), trains=True)
        return run._loop.through_batches(reader, self.batch, counted=True)

    def _data(self) -> Any:
        return self.data(self) if self.data is not None else made_data(self.samples)

    def _prepare(self, run: Run) -> None:
        source, checkpointer = run.engine.directives.source, run._parts.checkpointer
        steps, own, save = itertools.count(1), source.look, checkpointer.save

        def look() -> Directive | None:
            return self.commands.get(next(steps)) or own()

        def saved(current: Any) -> None:
            self.before_save[run.rank] = len(self.seen[run.rank])
            save(current)

        source.look, checkpointer.save = look, saved  # type: ignore[method-assign]

    # -- what came of it ---------------------------------------------------------------------

    def state(self, rank: int = 0) -> dict[str, Tensor]:
        """Parameters, buffers, and what the user's optimizer has at the end."""
        found = dict(self.models[rank].state_dict())
        for number, slots in self.optimizers[rank].state_dict()["state"].items():
            found |= {f"{number}.{n}": v for n, v in slots.items() if isinstance(v, Tensor)}
        return found

    def checkpoint(self) -> tuple[Path, dict[str, Tensor]]:
        path, manifest, remarks = shelf.newest_valid(RunPaths(self.folder).checkpoints)
        assert not remarks
        return path, load(path, manifest, None)

    def counts(self, until_save: bool = False) -> Counter[tuple[int, int]]:
        """How often each (epoch, sample) was trained on."""
        ends = self.before_save if until_save else [len(part) for part in self.seen]
        return Counter(e for part, end in zip(self.seen, ends, strict=True) for e in part[:end])

    def once(self) -> Counter[tuple[int, int]]:
        return Counter({(e, n): 1 for e in range(self.epochs) for n in range(self.samples)})


def train_epoch(
    run: Run, model: nn.Module, data: Any, batch: int, after: Callable[[], Any] = lambda: None
) -> None:
    """One pass in the shortest loop; ``after`` is called after each step."""
    for x, y in run.batches(data, batch=batch):
        run.backward(nn.functional.cross_entropy(model(x), y))
        run.step()
        after()


def made_data(samples: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, FEATURES, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), torch.arange(samples)


def assert_identical(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
