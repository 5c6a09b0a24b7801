"""Evaluates the shared weights: everyone a share in lockstep, one worker all of it otherwise.

When workers run freely, the first to end an epoch evaluates it, on a snapshot, while the others
go on; all evaluations of one epoch see the same snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.data.prefetch import move
from phalanx.data.reader import Reader
from phalanx.data.structure import joined, plain
from phalanx.policies.sample_assignment import split
from phalanx.sync.arena.arena import Locks
from phalanx.train.control.rendezvous import EVALUATE
from phalanx.train.engine.engine import Engine
from phalanx.train.engine.model_state import Snapshot
from phalanx.train.figures.gathered_values import gather
from phalanx.train.figures.model_calls import Forward, Metric, call_model, one_number
from phalanx.train.samples.epoch_batches import formatted

MOST_METRICS = 32
RING = 32  # most figures that are kept for those who come late
PER_EPOCH = 1 << 20  # most evaluations of one epoch
BATCH = 500

Means = Callable[[Any, Any], Sequence[Tensor | float]]


@dataclass(frozen=True)
class Question:
    """The metrics to compute for ``model`` on the data of ``reader``."""

    model: nn.Module
    reader: Reader
    means: Means
    """Metrics of each batch's outputs and targets, averaged over samples."""
    whole: Metric | None = None
    """A metric of all outputs and targets at once, instead of ``means``."""
    forward: Forward = call_model


def come_together(engine: Engine) -> None:
    """Let all workers have the weights and buffers to evaluate; in lockstep only. Collective."""
    engine.meet(EVALUATE)
    if engine.apart:
        engine.come_to_rest()
    engine.model.share_buffers()


class Evaluator:
    """Runs a model over data; averages metrics of batches, or computes one of all outputs."""

    def __init__(self, engine: Engine, device: torch.device, channels_last: bool) -> None:
        self.engine = engine
        self.snapshot: Snapshot | None = None
        """The weights that this worker evaluates in this epoch while the others go on training."""
        self._device, self._channels_last = device, channels_last
        self._done, self._epoch, self._numbered = 0, -1, 0
        width, workers = MOST_METRICS + 2, engine.workers
        self._sums = engine.region("evaluation.sums", workers * width, torch.float64).view(
            workers, width
        )
        # The worker that reports on each of the last epochs: [epoch + 1, rank].
        owners = engine.region("evaluation.owner", 2 * RING, torch.int64)
        self._owners = owners.view(RING, 2).numpy()
        self._ended = engine.region("evaluation.ended", workers, torch.int64).numpy()
        ring = engine.region("evaluation.ring", RING * width, torch.float64)
        self._ring = ring.view(RING, width).numpy()  # [number + 1, how many, averages …]

    def mine(self, epoch: int) -> bool:
        """Whether this worker reports on ``epoch``: in a free run, if it came first. Only the
        workers of the first machine can, because that keeps the best weights."""
        if self.engine.lockstep:
            return self.engine.rank == 0
        return self._owns(epoch, claims=self.engine.near_first)

    def _owns(self, epoch: int, *, claims: bool) -> bool:
        with self.engine.lock(Locks.EVALUATION):
            cell = self._owners[epoch % RING]
            if claims and cell[0] < epoch + 1:
                cell[:] = (epoch + 1, self.engine.rank)
            return bool(cell[0] == epoch + 1 and cell[1] == self.engine.rank)

    def run(self, epoch: int, asked: Question, *, wait: bool = True) -> list[float] | None:
        """Return the averages; ``None`` if another worker makes them and this one need not wait."""
        if epoch != self._numbered:  # workers may have made unequal numbers before
            self._numbered, self._done = epoch, epoch * PER_EPOCH
        number, self._done = self._done, self._done + 1
        if self.engine.lockstep:
            return self._together(asked)
        if not self.mine(epoch):
            resting = self.engine.resting
            found = self._made_by_another(epoch, number, wait)
            if not resting:
                self.engine.arrive()
            if found is not None or not wait:
                return found
            self._owns(epoch, claims=True)  # nobody else can claim it
        averages = self._on_snapshot(epoch, asked)
        with self.engine.lock(Locks.EVALUATION):
            cell = self._cell(number)
            cell[2 : 2 + len(averages)] = averages
            cell[:2] = (number + 1, len(averages))
        return averages

    def _together(self, asked: Question) -> list[float]:
        engine = self.engine
        come_together(engine)
        ends = [0, *split(len(asked.reader), [1.0] * engine.workers)]
        start, end = ends[engine.rank], ends[engine.rank + 1]
        mine = (
            self._sweep(asked, start, end) if asked.whole is None else self._gathered(asked, ends)
        )
        row = self._sums[engine.rank]
        row.zero_()
        row[: len(mine)] = mine
        row[-1] = len(mine)  # a worker without a share does not know the number of metrics
        engine.barrier()
        total, width = self._sums.sum(dim=0), int(self._sums[:, -1].max())
        engine.barrier()
        return _averages(total[:width])

    def _gathered(self, asked: Question, ends: Sequence[int]) -> Tensor:
        """Return figures computed by the first worker alone, so that all workers have the same."""
        engine, own = self.engine, self._outputs(asked, *ends[self.engine.rank :][:2])
        everyone = gather(own, engine.gather)
        found = [share for share in everyone if share is not None]
        return _asked_once(asked, found) if engine.rank == 0 else torch.zeros(1)

    def _cell(self, number: int) -> Any:
        """Return the cells of a number; each epoch has four, so that a few are there at once."""
        epoch, count = divmod(number, PER_EPOCH)
        return self._ring[(4 * epoch + count) % RING]

    def end_epoch(self, epoch: int) -> None:
        """Mark that this worker has made all its figures of ``epoch``."""
        self._ended[self.engine.rank] = epoch + 1

    def _made_by_another(self, epoch: int, number: int, wait: bool) -> list[float] | None:
        """Return figures that another worker makes. ``None`` also if this worker is so late that
        they are gone, or so early that the other has ended the epoch without them."""
        cell, owned = self._cell(number), self._owners[epoch % RING]
        while True:
            owner = int(owned[1]) if owned[0] == epoch + 1 else 0
            # Read this before the figures: if it has ended, all its figures are there.
            ended = bool(self._ended[owner] > epoch) or owner in self.engine.lost
            ended = ended or self.engine.leases.waits(owner)  # the owner may be waiting for us
            with self.engine.lock(Locks.EVALUATION):
                made, count = int(cell[0]), int(cell[1])
                if made == number + 1:
                    return [float(value) for value in cell[2 : 2 + count]]
            if made > number + 1 or not wait or ended:
                return None
            self.engine.rest()  # the owner may wait for this worker's next step
            self.engine.pause()

    def _on_snapshot(self, epoch: int, asked: Question) -> list[float]:
        if self._epoch != epoch or self.snapshot is None:
            self._epoch, self.snapshot = epoch, self.engine.model.take_snapshot()
        with self.engine.model.showing(self.snapshot):
            return self.alone(asked)

    def alone(self, asked: Question) -> list[float]:
        """Return figures of this worker's own model, after training, when workers do not meet."""
        if asked.whole is None:
            return _averages(self._sweep(asked, 0, len(asked.reader)))
        return _averages(_asked_once(asked, [self._outputs(asked, 0, len(asked.reader))]))

    def _sweep(self, asked: Question, start: int, end: int) -> Tensor:
        """Return sums over samples ``start … end``: [samples, average × samples, …]."""
        sums: Tensor | None = None  # on the device, because reading each batch would wait for it
        for samples, outputs, targets in self._through(asked, start, end):
            values = asked.means(outputs, targets)
            if len(values) > MOST_METRICS:
                raise InputError(f"more than {MOST_METRICS} metrics", "Use fewer.")
            row = self._row(values) * samples
            sums = row if sums is None else sums + row
        return torch.zeros(1, dtype=torch.float64) if sums is None else sums.cpu()

    def _outputs(self, asked: Question, start: int, end: int) -> Any:
        """Return [outputs, targets] of samples ``start … end``, in memory of the host."""
        host, found = torch.device("cpu"), []
        for _, outputs, targets in self._through(asked, start, end):
            found.append(plain(move([outputs, targets], host)))
        return joined(found) if found else None

    @torch.no_grad()
    def _through(self, asked: Question, start: int, end: int) -> Iterator[tuple[int, Any, Any]]:
        reader, model = asked.reader, asked.model
        training = model.training
        model.eval()
        try:
            places = range(start, end, reader.batch or BATCH)
            for at in self.engine.some_of(places, len(places)):
                indices = torch.arange(at, min(at + (reader.batch or BATCH), end))
                batch = move(reader.fetch(indices, 0), self._device)
                outputs, targets = asked.forward(model, formatted(batch, self._channels_last))
                yield len(indices), outputs, targets
        finally:
            model.train(training)

    def _row(self, values: Sequence[Tensor | float]) -> Tensor:
        where = self._device
        cells = [torch.as_tensor(v, dtype=torch.float64, device=where).reshape(()) for v in values]
        return torch.stack([torch.ones((), dtype=torch.float64, device=where), *cells])


def _asked_once(asked: Question, shares: Sequence[Any]) -> Tensor:
    assert asked.whole is not None
    outputs, targets = joined(shares)
    value = one_number(asked.whole(outputs, targets))
    return torch.tensor([1.0, value], dtype=torch.float64)


def _averages(sums: Tensor) -> list[float]:
    return [float(v) for v in sums[1:] / max(1.0, float(sums[0]))]
