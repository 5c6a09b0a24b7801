"""``Run``: what a training script holds while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.adapters.torch_models import save_state, state_of
from phalanx.core.errors import InputError
from phalanx.core.spec import Spec
from phalanx.data.ledger import Segment
from phalanx.data.reader import Reader, as_reader
from phalanx.observe.events import EpochDone, Logged, Planned, Saved, Switched
from phalanx.sync.switch import boundaries, segments
from phalanx.train.best import BestSoFar, Watch
from phalanx.train.engine import Engine
from phalanx.train.environment import Environment
from phalanx.train.evaluation import Evaluator
from phalanx.train.lifetime import Lifetime
from phalanx.train.metrics import Metric
from phalanx.train.passes import Pass, check_sizes, leases, loaded, new_pass
from phalanx.train.precision import autocast
from phalanx.train.stopwatch import Stopwatch


@dataclass(frozen=True)
class _Switch:
    """A change of strategy that is under way: when the last old update was applied, and where."""

    applied: float
    point: float
    before: str
    after: str


class Run:
    """This worker's side of the run. Made by :func:`phalanx.join`."""

    def __init__(
        self,
        environment: Environment,
        engine: Engine,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        spec: Spec,
        precision: str,
        stopwatch: Stopwatch,
        lifetime: Lifetime,
    ) -> None:
        self.environment, self.engine = environment, engine
        self.precision = precision
        self.history: list[dict[str, float | None]] = []
        self._models, self._optimizers, self._spec = list(models), list(optimizers), spec
        self._watch_steps, self._lifetime = stopwatch, lifetime
        self._writer, self._clock = stopwatch.writer, stopwatch.clock
        self._evaluator = Evaluator(engine, self.device, self._channels_last)
        self._best = BestSoFar(engine)
        self._watched: Watch | None = None
        self._epochs: int | None = None
        self._epoch = 0
        self.turn = 0
        """How many batches of this pass there were, also those this worker had no part in."""
        self._passes = 0
        self._readers: dict[int, tuple[Any, Reader]] = {}
        self._samples = 0  # of the batch in hand
        self._reference = 1  # samples that the whole step has, over all workers
        self._weight = 0.0
        self._seeds: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}
        self._switch: _Switch | None = None
        self._reports = environment.rank == 0
        lifetime.on_exit = lambda: self.finish(collective=False)

    @property
    def rank(self) -> int:
        return self.environment.rank

    @property
    def workers(self) -> int:
        return self.environment.workers

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        return self.environment.device

    @property
    def total_epochs(self) -> int | None:
        return self._epochs

    @property
    def folder(self) -> Path:
        """Files written here stay with the run."""
        paths = self.environment.paths
        return paths.files if paths else Path()

    @property
    def data(self) -> Path | None:
        """Where the data are on this machine, when the command line or the pool says so."""
        chosen = self.environment.settings.data
        return Path(chosen) if chosen else None

    @property
    def _channels_last(self) -> bool:
        return self.precision == "bfloat16"

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in the run's precision inside this block."""
        return autocast(self.precision, self.device)

    # -- the loop ----------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs to train, from 0; ``--epochs`` wins over ``count``."""
        self._epochs = self.environment.settings.epochs or count
        if self._epochs < 1:
            raise InputError(f"{self._epochs} epochs are too few", "Train for at least one.")
        for epoch in range(self._epochs):
            self._begin_epoch(epoch)
            began = self._clock.now()
            try:
                yield epoch
            except GeneratorExit:  # the script left its loop: the others may not be here
                self.finish(collective=False)
                raise
            self._end_epoch(epoch, began)
            if self.engine.stop_requested(epoch):
                break
        self.finish()

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._reports = self.is_first
        self._watch_steps.next_epoch(epoch)

    def _end_epoch(self, epoch: int, began: float) -> None:
        sums, now = self._watch_steps.sums, self._clock.now()
        rate = self._optimizers[0].param_groups[0]["lr"]
        self._writer.emit(
            EpochDone(
                time=now,
                rank=self.rank,
                epoch=epoch,
                seconds=now - began,
                samples=sums.samples,
                train_loss=sums.mean_loss(),
                train_accuracy=sums.accuracy(),
                rate=float(rate),
            )
        )

    def batches(self, data: Any, batch: int | None = None, *, augment: Any = None) -> Iterator[Any]:
        """This worker's batches of one pass over ``data``, on its device.

        ``batch`` is the global one, shared among the workers; a ``DataLoader`` brings its own.
        """
        reader = self._reader(data, augment)
        current = self._new_pass(reader, batch)
        self.turn = 0
        ends = boundaries(self._spec, self._epochs, current.samples, current.batch)
        for index, segment in enumerate(segments(self._epoch, current.samples, ends)):
            self._enter(segment, current)
            began = self._clock.now()
            found = leases(self.engine, current, index, segment)
            yield from self._through(loaded(current, found, self.device, self._channels_last))
            self._lifetime.trained(self._clock.now() - began)

    def _through(self, source: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
        while True:
            asked = self._watch_steps.asked()
            self._tell_switch(asked)
            lease, batch = next(source, (None, None))
            if lease is None:
                return
            self.turn += 1
            if batch is None:
                self._weight = self.engine.idle(self._weight)
                continue
            self._samples = lease.samples
            self._reference = lease.total
            self._watch_steps.received(asked, lease.samples)
            yield batch
            self._samples = 0
            if lease.short:
                self.engine.batch_done()

    def _new_pass(self, reader: Reader, batch: int | None) -> Pass:
        chosen = self.environment.settings
        wanted = chosen.batch or batch or reader.batch or 0
        if wanted < 1:
            raise InputError("the batch size is missing", "run.batches(train, batch=128)")
        if chosen.batch_per_worker:
            wanted = chosen.batch_per_worker * self.workers
        check_sizes(len(reader), wanted, self.workers)
        number, self._passes = self._passes, self._passes + 1
        current = new_pass(number, self._epoch, reader, wanted, chosen.seed)
        if number == 0:
            self._writer.emit(
                Planned(
                    time=self._clock.now(),
                    rank=self.rank,
                    epochs=self._epochs,
                    samples=current.samples,
                    batch=wanted,
                )
            )
        return current

    def _reader(self, data: Any, augment: Any = None) -> Reader:
        known = self._readers.get(id(data))
        if known is None or known[0] is not data:
            seed = self.environment.settings.seed
            known = (data, as_reader(data, seed=seed, augment=augment))
            self._readers[id(data)] = known
        return known[1]

    def backward(self, error: Tensor) -> None:
        """Back-propagate a mean over the batch in hand, weighted by how much of the step it is."""
        share = self._samples / self._reference if self.engine.lockstep else 1.0
        self._watch_steps.loss(error, self._samples)
        self._weight += share
        error.backward(self._seed(error, share))

    def _seed(self, error: Tensor, share: float) -> Tensor | None:
        """Where back-propagation begins: cheaper than multiplying the loss."""
        if share == 1.0:
            return None
        key = (share, error.dtype, error.device)
        if key not in self._seeds:
            if len(self._seeds) > 64:
                self._seeds.clear()
            self._seeds[key] = torch.full_like(error.detach(), share)
        return self._seeds[key]

    def step(
        self,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        clip: float | None = None,
        weight: float | None = None,
    ) -> None:
        """Agree on the gradient with the others, clip it, update the parameters, zero it."""
        index = 0 if optimizer is None else self._index(optimizer)
        ready = self._clock.now()
        if weight is not None or self._weight == 0.0:
            self._reweigh(index, weight)
        self._exchange(index, self._weight, clip, ready)
        self._weight = 0.0

    def _exchange(self, index: int, weight: float, clip: float | None, ready: float) -> None:
        timing = self.engine.exchange(index, weight, clip, self._samples)
        self._watch_steps.stepped(ready, timing)

    def _reweigh(self, index: int, weight: float | None) -> None:
        """The gradient is a plain mean (``loss.backward()``), or is to weigh ``weight``."""
        share = self._samples / self._reference if self.engine.lockstep else 1.0
        target = share if weight is None else weight
        factor = target / (self._weight or 1.0)
        if factor != 1.0:
            groups = self._optimizers[index].param_groups
            gradients = [p.grad for g in groups for p in g["params"] if p.grad is not None]
            if gradients:
                torch._foreach_mul_(gradients, factor)
        self._weight = target

    def _index(self, optimizer: torch.optim.Optimizer) -> int:
        for i, known in enumerate(self._optimizers):
            if known is optimizer:
                return i
        raise InputError("this optimizer did not join", "phalanx.join([G, D], [g, d])")

    # -- the switch --------------------------------------------------------------------------

    def _enter(self, segment: Segment, current: Pass) -> None:
        before = self._spec.phases[self.engine.phase].label
        applied = self.engine.enter(segment.phase)
        if applied is not None:
            after = self._spec.phases[segment.phase].label
            point = self._epoch + segment.start / current.samples
            self._switch = _Switch(applied, point, before, after)

    def _tell_switch(self, now: float) -> None:
        """The first new step begins: the pause is over."""
        switch, self._switch = self._switch, None
        if switch and self.is_first:
            self._writer.emit(
                Switched(
                    time=now,
                    rank=self.rank,
                    epoch=self._epoch,
                    at_epoch=switch.point,
                    before=switch.before,
                    after=switch.after,
                    pause=now - switch.applied,
                )
            )

    # -- evaluation and results --------------------------------------------------------------

    def evaluate(self, metric: Metric, data: Any, *, model: nn.Module | None = None) -> float:
        """The mean of ``metric(outputs, targets)`` over ``data``, the same for every worker."""
        values = self.measure(lambda outputs, y: [metric(outputs, y)], data, model=model)
        return float("nan") if values is None else values[0]

    def measure(
        self,
        means: Callable[[Tensor, Tensor], Sequence[Tensor | float]],
        data: Any,
        *,
        model: nn.Module | None = None,
        wait: bool = True,
    ) -> list[float] | None:
        """Several means at once; ``None`` if another worker has them and this need not wait."""
        began = self._clock.now()
        with self.autocast():
            values, self._reports = self._evaluator.run(
                model or self._models[0], self._reader(data), means, wait=wait
            )
        self._lifetime.evaluated(self._clock.now() - began)
        return values

    @property
    def reports(self) -> bool:
        """Whether this worker's figures are the ones that are logged."""
        return self._reports

    def log(self, **values: float) -> None:
        """Figures of this epoch, by any name: they become columns of the report."""
        numbers: dict[str, float | None] = {n: float(value) for n, value in values.items()}
        self.history.append({"epoch": self._epoch, **numbers})
        if not self._reports:
            return
        self._writer.emit(
            Logged(time=self._clock.now(), rank=self.rank, epoch=self._epoch, values=numbers)
        )
        self._judge(numbers)

    def save_best(self, name: str, patience: int | None = None) -> None:
        """Keep the weights of the epoch with the best ``name``; stop ``patience`` epochs later."""
        self._watched = Watch(name, patience)
        self._evaluator.keep = self._models

    def _judge(self, values: dict[str, float | None]) -> None:
        watched = self._watched
        value = values.get(watched.name) if watched else None
        if watched is None or value is None:
            return
        if self._best.improves(watched.name, value, self._epoch):
            if self.environment.paths:
                self._save(self.environment.paths.best)
        elif watched.patience and self._epoch - self._best.epoch >= watched.patience:
            self.stop()

    def stop(self) -> None:
        """End training for all workers at the end of this epoch."""
        self.engine.request_stop(self._epoch)

    def _save(self, path: Path) -> None:
        """What was evaluated: in lockstep the weights are still that, otherwise a copy was kept."""
        kept = None if self.engine.lockstep else self._evaluator.kept
        save_state(kept or state_of(self._models), path)
        self._writer.emit(
            Saved(time=self._clock.now(), rank=self.rank, path=path.name, epoch=self._epoch)
        )

    def finish(self, *, collective: bool = True) -> None:
        """Training is over: the model has its final weights in ordinary tensors."""
        if self._lifetime.over:
            return
        self.engine.finish(collective)
        if self.is_first and self.environment.paths:
            save_state(state_of(self._models), self.environment.paths.model)
        self._lifetime.end("done", self._watch_steps.bytes_sent)
