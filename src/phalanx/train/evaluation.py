"""Evaluation of the shared weights: everyone's share in lockstep, the first to come otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from phalanx.adapters.torch_models import state_of
from phalanx.core.errors import InputError
from phalanx.data.ledger import split
from phalanx.data.prefetch import move
from phalanx.data.reader import Reader
from phalanx.train.engine import EVALUATE, Engine, SharedEngine

MOST_METRICS = 32
LOCK = 1
RING = 8
BATCH = 500

Means = Callable[[Tensor, Tensor], Sequence[Tensor | float]]


class Evaluator:
    """Runs a model over data and averages what ``means`` returns for each batch."""

    def __init__(self, engine: Engine, device: torch.device, channels_last: bool) -> None:
        self._engine, self._device, self._channels_last = engine, device, channels_last
        self._done = 0
        self.keep: list[nn.Module] | None = None
        """Models whose state at the last evaluation is to be kept, for whoever saves the best."""
        self.kept: dict[str, Tensor] | None = None
        if isinstance(engine, SharedEngine):
            width = MOST_METRICS + 2
            self._sums = engine.arena.region(
                "evaluation.sums", engine.workers * width, torch.float64
            ).view(engine.workers, width)
            self._ring = (
                engine.arena.region("evaluation.ring", RING * width, torch.float64)
                .view(RING, width)
                .numpy()
            )

    def run(
        self, model: nn.Module, reader: Reader, means: Means, *, wait: bool = True
    ) -> tuple[list[float] | None, bool]:
        """The averages, and whether this worker is the one that reports them.

        The averages are ``None`` when another worker makes them and this one need not ``wait``.
        """
        engine, number = self._engine, self._done
        self._done += 1
        if not isinstance(engine, SharedEngine):
            sums = self._sweep(model, reader, means, 0, len(reader))
            return _averages(sums), True
        if engine.lockstep:
            return self._together(engine, model, reader, means), engine.rank == 0
        return self._first_to_come(engine, number, model, reader, means, wait)

    def _together(
        self, engine: SharedEngine, model: nn.Module, reader: Reader, means: Means
    ) -> list[float]:
        engine.meet(EVALUATE)
        engine.share_buffers()
        ends = split(len(reader), [1.0] * engine.workers)
        start = ends[engine.rank - 1] if engine.rank else 0
        mine = self._sweep(model, reader, means, start, ends[engine.rank])
        row = self._sums[engine.rank]
        row.zero_()
        row[: len(mine)] = mine
        row[-1] = len(mine)  # a worker without a share does not know the number of metrics
        engine.barrier()
        total, width = self._sums.sum(dim=0), int(self._sums[:, -1].max())
        engine.barrier()
        return _averages(total[:width])

    def _first_to_come(
        self,
        engine: SharedEngine,
        number: int,
        model: nn.Module,
        reader: Reader,
        means: Means,
        wait: bool,
    ) -> tuple[list[float] | None, bool]:
        cell = self._ring[number % RING]  # [number + 1, how many averages, averages …]
        with engine.arena.lock(LOCK):
            mine = bool(cell[0] < number + 1)
            if mine:
                cell[:2] = (number + 1, 0)
        if mine:
            averages = self._snapshot(engine, model, reader, means)
            with engine.arena.lock(LOCK):
                cell[2 : 2 + len(averages)] = averages
                cell[1] = len(averages)
            return averages, True
        while wait and cell[0] == number + 1 and cell[1] == 0:
            engine.arena.pause()
        count = int(cell[1])
        return ([float(v) for v in cell[2 : 2 + count]] if count else None), False

    def _snapshot(
        self, engine: SharedEngine, model: nn.Module, reader: Reader, means: Means
    ) -> list[float]:
        """The newest weights and everyone's buffers, while the others go on training."""
        with engine.snapshot():
            averages = _averages(self._sweep(model, reader, means, 0, len(reader)))
            if self.keep is not None:
                self.kept = {k: v.clone() for k, v in state_of(self.keep).items()}
        return averages

    @torch.no_grad()
    def _sweep(
        self, model: nn.Module, reader: Reader, means: Means, start: int, end: int
    ) -> Tensor:
        """Sums over samples ``start … end``: [samples, average × samples, …]."""
        training = model.training
        model.eval()
        sums: Tensor | None = None
        try:
            for at in range(start, end, BATCH):
                indices = torch.arange(at, min(at + BATCH, end))
                x, y = self._batch(reader, indices)
                values = means(model(x), y)
                if len(values) > MOST_METRICS:
                    raise InputError(f"more than {MOST_METRICS} metrics", "Use fewer.")
                row = torch.tensor([1.0, *(float(v) for v in values)], dtype=torch.float64)
                row *= len(indices)
                sums = row if sums is None else sums + row
        finally:
            model.train(training)
        return torch.zeros(1, dtype=torch.float64) if sums is None else sums

    def _batch(self, reader: Reader, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, y = move(reader.fetch(indices, 0), self._device)
        if self._channels_last and isinstance(x, Tensor) and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, y


def _averages(sums: Tensor) -> list[float]:
    return [float(v) for v in sums[1:] / max(1.0, float(sums[0]))]
