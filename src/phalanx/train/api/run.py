"""``Run``: what a training script holds while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch
from torch import Tensor, nn

from phalanx.adapters.torch_models import save_state, state_of
from phalanx.core.errors import InputError, NotFinite, PeerLost, RunStopped
from phalanx.core.inside import Inside
from phalanx.data.ledger import Lease
from phalanx.data.reader import Reader, as_reader
from phalanx.train.api import gathered_values as gathered
from phalanx.train.api.metrics import Metric, whole_set
from phalanx.train.api.model_calls import Forward, call_model
from phalanx.train.api.precision import autocast
from phalanx.train.checkpoint.checkpointing import Checkpointer, Resumed, Trained
from phalanx.train.checkpoint.kept_state import Keeper
from phalanx.train.control.command_poller import CommandPoller
from phalanx.train.control.rendezvous import EPOCH_DONE
from phalanx.train.guards.carried_state import CarriedState
from phalanx.train.guards.grad_scaler import Scaling
from phalanx.train.guards.gradient_reads import GradientReads
from phalanx.train.guards.loss_kind import LossWatch, check_factors, watch_backward
from phalanx.train.guards.nonfinite import SOUND, NonFinite, bad_weights
from phalanx.train.guards.same_data import SameData
from phalanx.train.guards.step_guard import StepGuard
from phalanx.train.loop.engine import NEVER, Engine
from phalanx.train.loop.epoch_figures import Figures
from phalanx.train.loop.evaluation import Evaluator, Means, Question
from phalanx.train.loop.gradient_weight import GradientWeight
from phalanx.train.loop.passes import Pass, batch_of, check_sizes, new_pass
from phalanx.train.loop.rate_schedules import RateSchedules
from phalanx.train.loop.schedule import Schedule, check_fixed
from phalanx.train.loop.stopwatch import Stopwatch
from phalanx.train.start.environment import Environment, between_machines
from phalanx.train.start.lifecycle import Lifecycle


class Run:
    """This worker's side of the run. Made by :func:`phalanx.join`."""

    def __init__(
        self,
        environment: Environment,
        trained: Trained,
        course: Schedule,
        precision: str,
        stopwatch: Stopwatch,
        lifetime: Lifecycle,
        resumed: Resumed | None = None,
        *,
        loss: str = "mean",
    ) -> None:
        self.environment, self.engine, self.precision = environment, trained.engine, precision
        self._trained, self._course, self._resumed = trained, course, resumed
        self._models, self._optimizers = list(trained.models), list(trained.optimizers)
        self._stopwatch, self._lifetime = stopwatch, lifetime
        self._writer, self._clock = stopwatch.writer, stopwatch.clock
        self._evaluator = Evaluator(self.engine, self.device, self._channels_last)
        self._checkpoints = Checkpointer(environment, trained, course, stopwatch)
        self._figures = Figures(
            environment, self._models, stopwatch, lifetime,
            self._evaluator, self._checkpoints, resumed,
        )  # fmt: skip
        self.history = self._figures.history
        self._sums = loss == "sum"
        self._weighing = GradientWeight(self._optimizers, sums=self._sums)
        self._checkpoints.pending = self._weighing.export_state
        self._ours = Inside()
        """Inside, it is not the script that steps, saves, loads or reads gradients."""
        self._own_steps = StepGuard(self._optimizers, self.engine, self._ours)
        self._reads = GradientReads(
            self.engine, self._models, self._optimizers, self._weighing, self._ours
        )
        self._losses, self._in_batch, self._looked = LossWatch(), False, False
        watch_backward(self._see_backward)
        self._schedules = RateSchedules(self.engine, self._optimizers)
        self._clip: float | None = None
        self._epochs: int | None = None
        self._epoch = self._passes = 0
        self._began = self._inside = False
        self._same_data = SameData(self.engine)
        self._carried = CarriedState(self._models) if self.workers > 1 else None
        self._waits_for_device = self.workers > 1 and self.device.type == "cuda"
        """A GPU's gradient is there when it has computed it, not when it was asked to: else its
        speed would look like that of the asking. The exchange would wait for it anyway."""
        self.on_finish: Callable[[], None] = lambda: None
        self._readers: dict[tuple[int, int], tuple[Any, Any, Reader]] = {}
        self.engine.watcher = CommandPoller(environment, self._clock, self._checkpoints).look
        self.engine.on_shares = self._figures.tell_shares
        self._nonfinite = NonFinite(environment, self.engine, stopwatch)
        self._scaling = Scaling(self._optimizers, self.step, self._nonfinite)
        self.engine.on_step = self._scaling.on_step
        self.engine.on_lost = self._figures.tell_lost
        self.engine.on_settled = self._figures.tell_settled
        course.on_save = self._checkpoints.save
        course.before_stop, course.on_stop = lifetime.obey, self._stop_here
        course.before_switch = self._step_before_switch
        self.engine.told_to_stop = lifetime.told_to_stop
        # Whoever has nothing to save, and nobody on other machines to tell, may end at once.
        lifetime.stops_in_order = self._checkpoints.wanted or between_machines(environment)
        course.on_resume = resumed.restore_random if resumed else None
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
        return self.environment.data

    @property
    def pending(self) -> int:
        """Batches since the last step, also those this worker had no samples of."""
        return self._weighing.pending

    @property
    def samples(self) -> int:
        """Samples of the batch in hand that count as this worker's.

        0 where a last batch has fewer samples than there are workers: then this worker goes
        through the loop with the others' samples, and what it computes counts nothing.
        """
        return self._stopwatch.batch_samples

    def average_accumulated(self) -> None:
        """Batches since the last step are averaged by it; else they add up, as in torch."""
        self._weighing.averages = True

    @property
    def _channels_last(self) -> bool:
        return self.precision == "bfloat16"

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in the run's precision inside this block."""
        return autocast(self.precision, self.device)

    # -- epochs and batches ------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs to train, from 0; ``--epochs`` wins over ``count``."""
        self._epochs = self.environment.settings.epochs or count
        if self._epochs < 1:
            raise InputError(f"{self._epochs} epochs are too few", "Train for at least one.")
        self._course.epochs = self._figures.epochs = self._epochs
        self._restore_kept()
        self._passes = self._course.start.first_pass
        for epoch in range(self._course.start.epoch, self._epochs):
            if not self.engine.begin_epoch(epoch):
                break
            self._course.first_pass = self._passes
            self._epoch = epoch
            self._figures.begin_epoch(epoch)
            began, rate = self._clock.now(), float(self._optimizers[0].param_groups[0]["lr"])
            try:
                yield epoch
            except GeneratorExit:  # the script left its loop: the others may not be here
                if not self._lifetime.broken():
                    with suppress(PeerLost):  # perhaps that is why it left
                        self._end_epoch(epoch, began, rate)
                        self.finish(collective=False)
                raise
            self._end_epoch(epoch, began, rate)
            self._check_weights(f"after epoch {epoch + 1}")
            if self.engine.lockstep:
                self.engine.meet(EPOCH_DONE)  # whoever asked to stop in this epoch has done so
        self.finish()

    def keep(self, **objects: Keeper) -> None:
        """Save these with the run, and restore them when it is resumed (``state_dict``)."""
        self._trained.keepers.update(objects)

    def _restore_kept(self) -> None:
        """Here, because a scheduler that is made after joining changes rates as well."""
        if self._resumed is not None and not self._began:
            self._resumed.restore_kept(self._trained)
            self._weighing.import_state(self._resumed.private or {})
        self._began = True

    def _check_weights(self, when: str) -> None:
        if bad := bad_weights(self._models, self._optimizers):
            raise NotFinite(f"{when} {bad}; {SOUND}")

    def _end_epoch(self, epoch: int, began: float, rate: float) -> None:
        self._evaluator.end_epoch(epoch)
        self._figures.end_epoch(epoch, began, rate)

    def batches(
        self, data: Any, batch: int | None = None, *, augment: Any = None, fixed: bool = False
    ) -> Iterator[Any]:
        """This worker's batches of one pass over ``data``, on its device.

        ``batch`` is the global one, shared among the workers; a ``DataLoader`` brings its own.
        ``fixed``: in the data's own order, and always the same columns of each global batch.
        """
        if fixed and self.workers > 1:
            check_fixed(self._course.spec)
            self._figures.say_once("fixed=True: equal shares, whatever the workers' speeds")
        if self._epochs is None:
            self._restore_kept()
        current = self._new_pass(self._reader(data, augment, trains=True), batch, fixed)
        self._follow_parameters()  # here all workers come by, also one that will have no batch
        stretches = self._course.through(current, self.device, channels_last=self._channels_last)
        trained = False
        self._schedules.begin_pass(current, self._course.begin_at(current))
        for source in stretches:
            trained, began, self._inside = True, self._clock.now(), True
            try:
                yield from self._through(source, current)
            except GeneratorExit:  # the script left its loop
                self._in_batch = False
                self._schedules.leave_pass()
                raise
            finally:
                self._inside = False
                self._lifetime.trained(self._clock.now() - began)
        if trained:
            self._schedules.end_pass()
            self.engine.end_pass()
            self._checkpoints.after_pass(current)

    def _through(self, source: Iterator[tuple[Lease, Any]], current: Pass) -> Iterator[Any]:
        while True:
            asked = self._stopwatch.asked()
            switched = self._course.switching.over(asked, self._figures.told(self._epoch))
            if switched and self.is_first:
                at = switched.at_epoch + self._lifetime.epochs_before
                self._writer.emit(msgspec.structs.replace(switched, at_epoch=at))
            lease, batch = next(source, (None, None))
            if lease is None:
                return
            self._weighing.new_batch(lease, current.batch, self.engine)
            if self.engine.goes_ahead:
                self.engine.begin_batch(self._weighing.scales)
            self.engine.received(lease)
            self._schedules.new_batch(lease)
            self._stopwatch.received(asked, lease.samples)
            if self._carried is not None:
                self._carried.new_batch(lease.end - lease.start, fixed=current.fixed)
            self._in_batch = True
            yield batch
            self._in_batch = False
            if lease.ends_round:
                self._end_round()
            if self._course.reached(lease):
                source.close()  # type: ignore[attr-defined]  # what was read ahead is read again
                return

    def _follow_parameters(self) -> None:
        if not self.engine.outgrown:
            return
        with self._ours:
            self.engine.follow_parameters()
        self._reads.watch()

    def _end_round(self) -> None:
        began = self._clock.now()
        timing = self.engine.end_round()
        if timing is not None:
            self._stopwatch.agreed(began, timing)

    def _stop_here(self) -> NoReturn:
        """The state is copied: wait until it is written, and end with the others."""
        try:
            self.engine.barrier()  # everybody has begun to write: now it may be waited for
            self._checkpoints.finish()
            self.engine.leave()
        except PeerLost:  # one that could not wait
            self._checkpoints.finish()
        raise RunStopped

    def _step_before_switch(self) -> None:
        """What was accumulated under the old strategy is applied there."""
        if self.pending and len(self._optimizers) == 1:
            self.step(clip=self._clip)

    def _new_pass(self, reader: Reader, batch: int | None, fixed: bool) -> Pass:
        chosen = self.environment.settings
        if chosen.epochs and self._epochs is None:
            raise InputError(
                "--epochs was given, but this script's loop does not ask for it",
                "for epoch in run.epochs(10):",
            )
        wanted = batch_of(chosen, batch or reader.batch, self.workers)
        check_sizes(len(reader), wanted, self.workers)
        number, self._passes = self._passes, self._passes + 1
        # A loop without run.epochs: each pass is an epoch.
        epoch = number if self._epochs is None else self._epoch
        current = new_pass(number, epoch, reader, wanted, chosen.seed, fixed=fixed)
        self._figures.plan(current)
        return current

    def _reader(self, data: Any, augment: Any = None, *, trains: bool = False) -> Reader:
        key = (id(data), id(augment))
        if key not in self._readers:  # data and augment are kept alive, so their ids stay theirs
            seed = self.environment.settings.seed
            reader = as_reader(data, seed=seed, augment=augment)
            self._same_data.check(
                self.engine, reader, f"data to {'train on' if trains else 'evaluate'}"
            )
            self._readers[key] = (data, augment, reader)
        return self._readers[key][2]

    # -- steps -------------------------------------------------------------------------------

    def backward(self, error: Tensor) -> None:
        """``error.backward()``, whose value becomes the training loss of the report."""
        self._check_batch()
        self._looked = True
        try:
            self._look_at(error)
            error.backward()
        finally:
            self._looked = False

    def _look_at(self, error: Tensor) -> None:
        """A loss is about to go backwards."""
        self._stopwatch.loss(error, summed=self._sums)
        if self._sums or self.workers == 1 or error.grad_fn is None or not self.samples:
            return
        counted = self._losses.weight_of(error, self._stopwatch.batch_samples)
        if self.engine.parties == 1 or not self._weighing.count_as(counted):
            return
        if self.engine.goes_ahead:
            self.engine.begin_batch(self._weighing.scales)

    def _see_backward(self, error: Tensor, factor: Tensor | None) -> None:
        """The script called ``error.backward()`` itself."""
        if not self._in_batch or self._looked:
            return
        if error.numel() == 1:
            self._look_at(error)
        elif self.workers > 1 and not self._sums and factor is not None and self.samples > 1:
            check_factors(factor, self.samples)

    def step(
        self,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        clip: float | None = None,
        weight: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Agree on the gradient with the others, clip it, update the parameters, zero it.

        ``scaler`` is what the loss was scaled with; with one optimizer it is updated as well.
        """
        index = 0 if optimizer is None else self._index(optimizer)
        if weight is None:
            self._check_batch()
        if self._waits_for_device:
            torch.cuda.current_stream(self.device).synchronize()
        self.engine.worked(*self._stopwatch.worked())
        ready = self._clock.now()
        self._follow_parameters()
        scale, weight = self._weighing.of_step(index, weight)
        agreed = index in self._weighing.agreed and scaler is None
        with self._ours:
            factor = self._scaling.before_step(index, scaler)
            timing = self.engine.exchange(index, scale, weight, clip, agreed=agreed)
            self._scaling.after_step(scaler)
        self._stopwatch.stepped(ready, timing, factor)
        self._weighing.stepped(index)
        self._clip = clip

    def _check_batch(self) -> None:
        if self._passes == 0:
            raise InputError(
                "this batch did not come from run.batches, so its weight is unknown",
                "for x, y in run.batches(train, batch=128): or, for batches of your own, "
                "error.backward() and run.step(weight=its part of the global batch).",
            )

    def _index(self, optimizer: torch.optim.Optimizer) -> int:
        for i, known in enumerate(self._optimizers):
            if known is optimizer:
                return i
        raise InputError("this optimizer did not join", "phalanx.join([G, D], [g, d])")

    # -- evaluation and results --------------------------------------------------------------

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

        ``whole``: asked once, of all outputs and targets; as one that has ``compute`` always is.
        """
        asked = Question(
            model or self._models[0],
            self._reader(data),
            lambda outputs, y: [metric(outputs, y)],
            whole_set(metric) if whole or hasattr(metric, "compute") else None,
            forward,
        )
        values = self._ask(asked, wait=True)
        assert values is not None  # it waits for them
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
        """Several means at once; ``None`` if another worker has them and this need not wait."""
        asked = Question(model or self._models[0], self._reader(data), means, forward=forward)
        return self._ask(asked, wait=wait)

    def _ask(self, asked: Question, *, wait: bool) -> list[float] | None:
        began = self._clock.now()
        self._figures.evaluated = True
        with self.autocast():
            values = self._evaluator.run(self._epoch, asked, wait=wait)
        self._lifetime.evaluated(self._clock.now() - began)
        return values

    def gather(self, value: Any) -> list[Any]:
        """What each worker gives, by rank; every worker has to ask. Numbers, texts, tensors."""
        return gathered.gather(value, self._bring_together)

    def reduce(self, value: Any, how: str = "mean") -> Any:
        """The mean, sum, min or max of what each worker gives; every worker has to ask."""
        return gathered.reduce(value, how, self._bring_together)

    def _bring_together(self, mine: bytes) -> list[bytes]:
        return gathered.bring_together(
            self.engine, mine, self._inside, self._lifetime.over and self.workers > 1
        )

    def judge(self, outputs: Any, targets: Any) -> None:
        """Count the classes that a training batch got right, if it is about classes."""
        self._figures.judge(outputs, targets)

    def train_figures(self) -> dict[str, float]:
        """What this worker saw of the epoch so far."""
        return self._figures.of_training()

    def log(self, **values: float) -> None:
        """Figures of this epoch, by any name: they become columns of the report."""
        self._figures.log(values)

    def tell(self, figures: Mapping[str, float | None]) -> None:
        """Print the epoch's line where nobody else shows progress: outside a run."""
        self._figures.tell(figures)

    def save_best(self, name: str, patience: int | None = None) -> None:
        """Keep the weights of the epoch with the best ``name``; stop ``patience`` epochs later."""
        self._figures.watch(name, patience)

    def stop(self) -> None:
        """End training for all workers at the end of this epoch."""
        self.engine.request_stop(self._epoch)

    def finish(self, *, collective: bool = True) -> None:
        """Training is over: the model has its final weights in ordinary tensors."""
        if self._lifetime.over:
            return
        self._evaluator.end_epoch(NEVER - 1)
        with self._ours:
            self.engine.finish(collective)
        self._own_steps.end()
        self._reads.end()
        watch_backward(None)
        self._schedules.end()
        self._scaling.end()
        # What follows concerns this worker alone: evaluating, logging, saving.
        self.engine = self._evaluator.engine = Engine(self._models, self._optimizers, self._clock)
        self._evaluator.snapshot = None
        self._checkpoints.finish()
        try:
            self._check_weights("at the end of training")
        except NotFinite as error:
            self._lifetime.end("failed", self._stopwatch.bytes_sent, self._epoch + 1)
            if collective:
                raise
            self._lifetime.fail(str(error))
            return
        if self.is_first and self.environment.paths:
            save_state(state_of(self._models), self.environment.paths.model)
        self._lifetime.end("done", self._stopwatch.bytes_sent, self._epoch + 1)
        self.on_finish()
