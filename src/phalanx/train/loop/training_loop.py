"""The training loop: epochs, passes over the data, the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor

from phalanx.adapters.torch_models import save_state, state_of
from phalanx.core.context import call_at_end
from phalanx.core.errors import InputError, NotFinite, PeerLost, PhalanxError
from phalanx.data.reader import Reader
from phalanx.train.control.rendezvous import EPOCH_DONE
from phalanx.train.engine.engine import NEVER
from phalanx.train.loop.segments import Segments, Source, WorkerParts
from phalanx.train.samples import epoch_batches
from phalanx.train.samples.schedule import check_fixed, check_pinned
from phalanx.train.step.nonfinite import SOUND, bad_weights


class TrainingLoop:
    def __init__(self, parts: WorkerParts) -> None:
        self._parts, self._engine = parts, parts.trained.engine
        self._schedule, self._figures, self._steps = parts.schedule, parts.figures, parts.steps
        self._lifecycle, self._clock = parts.lifecycle, parts.stopwatch.clock
        self.epochs: int | None = None
        self.epoch = 0
        self.inside = False
        """Whether a pass over the data is under way."""
        self.in_last_batch = False
        self.current: epoch_batches.Pass | None = None
        self._passes = self.own_steps = 0
        """The number of passes begun, and of steps on batches that came from no loader."""
        self.reached = 0
        """Samples of the pass up to the end of the present global batch."""
        self._began = False
        self._segments = Segments(parts)
        self._forget_exit = call_at_end(self._at_exit) if parts.environment.launched else None

    # -- epochs ------------------------------------------------------------------------------

    def through_epochs(self, count: int, first: int = 0) -> Iterator[int]:
        """Yield the epochs to train; ``first``: what the script calls the first of them."""
        if count < 1:
            raise InputError(f"{count} epochs are too few", "Train for at least one.")
        self.epochs = self._schedule.epochs = self._figures.epochs = count
        self._restore_kept()
        start, optimizer = self._schedule.start, self._parts.trained.optimizers[0]
        self._passes = start.first_pass
        for epoch in range(start.epoch, count):
            if not self._engine.begin_epoch(epoch):
                break
            self._schedule.first_pass, self.epoch = self._passes, epoch
            self._figures.begin_epoch(epoch)
            began, rate = self._clock.now(), float(optimizer.param_groups[0]["lr"])
            try:
                yield first + epoch
            except GeneratorExit:  # the script left its loop, perhaps on this worker alone
                if not self._lifecycle.broken():
                    with suppress(PeerLost):  # perhaps that is why it left
                        self._end_epoch(began, rate)
                        self.finish(collective=False)
                raise
            self._end_epoch(began, rate)
            self._check_weights(f"after epoch {epoch + 1}")
            if self._engine.lockstep:
                self._engine.meet(EPOCH_DONE)  # a request to stop in this epoch is made by now
        self.finish()

    def _end_epoch(self, began: float, rate: float) -> None:
        self._parts.evaluator.end_epoch(self.epoch)
        self._parts.events.epoch_done(began, rate, self.own_steps or None)
        self._figures.end_epoch(rate)

    def _restore_kept(self) -> None:
        """Restore rates and kept state only now: a scheduler made after joining changed them."""
        resumed, trained = self._parts.resumed, self._parts.trained
        if resumed is not None and not self._began:
            resumed.restore_kept(trained)
            trained.weight.import_state(resumed.private or {})
        self._began = True

    def _check_weights(self, when: str) -> None:
        if self._steps.not_finite is not None:
            raise self._steps.not_finite
        trained = self._parts.trained
        if bad := bad_weights(trained.models, trained.optimizers):
            raise NotFinite(f"{when} {bad}; {SOUND}")

    # -- passes ------------------------------------------------------------------------------

    def adopt(self, epochs: int | None) -> None:
        """Adopt the script's own loop, of ``epochs`` passes if that is known; each is an epoch."""
        self._schedule.epochs = self._figures.epochs = epochs
        self._steps.keeps_gradients = True

    def through_adopted(
        self, reader: Reader, order: Tensor, batch: int, *, counted: bool = False
    ) -> Iterator[Any]:
        """Yield this worker's batches of one epoch of an adopted script, in the script's own order.
        ``counted``: all workers need the same number of batches."""
        epoch, skipped = self._passes, self._passes < self._schedule.start.pass_number
        if not skipped:
            self.epoch = epoch
            self._figures.begin_epoch(epoch)
        began = self._clock.now()
        rate = float(self._parts.trained.optimizers[0].param_groups[0]["lr"])
        if epoch and self.resumes_inside():
            self._restore_again()
        try:
            yield from self.through_batches(reader, batch, order=order, counted=counted)
        except GeneratorExit:  # the script left its loop
            if not self._lifecycle.broken() and self._parts.stopwatch.sums.samples:
                self._end_epoch(began, rate)
            raise
        if skipped:
            if not self.is_before_checkpoint and not self._schedule.start.position:
                self._restore_again()
        else:
            self._end_epoch(began, rate)
            self._check_weights(f"after epoch {epoch + 1}")

    @property
    def is_before_checkpoint(self) -> bool:
        """Whether a resumed adopted script is still in the epochs before its checkpoint."""
        return self._passes < self._schedule.start.pass_number

    def resumes_inside(self) -> bool:
        """Whether the next pass of an adopted script continues in its middle."""
        start = self._schedule.start
        return self._passes == start.pass_number and start.position > 0

    def _restore_again(self) -> None:
        """Restore weights into which the script may have written in skipped epochs."""
        resumed = self._parts.resumed
        if resumed is not None:
            with self._steps.ours:
                resumed.restore(self._parts.trained)
            # A single worker draws the next order from the same generator as all other numbers.
            if self._engine.workers == 1 and self._schedule.start.position == 0:
                resumed.restore_random()

    def through_batches(
        self,
        reader: Reader,
        batch: int | None,
        *,
        fixed: bool = False,
        order: Tensor | None = None,
        counted: bool = False,
    ) -> Iterator[Any]:
        """Yield this worker's batches of a pass; ``order``: that of an adopted script's loader."""
        parts, rates = self._parts, self._parts.rates
        if fixed and self._engine.workers > 1:
            check_fixed(self._schedule.spec)
            self._figures.say_once("fixed=True: equal shares, whatever the workers' speeds")
        # An adopted script repeats the epochs before a checkpoint, without batches.
        behind = order is not None and self._passes < self._schedule.start.pass_number
        if self.epochs is None and not behind:
            self._restore_kept()
        current = replace(self._new_pass(reader, batch, fixed, order), counted=counted)
        self.current = current
        self._engine.begin_pass(adopted=current.adopted and not behind)
        if self._engine.optimizers.outgrown():  # all workers get here, even without a batch
            self._steps.follow_parameters()
        trained = False
        rates.begin_pass(current, self._schedule.begin_at(current))
        for source in self._segments.of(current):
            trained, began, self.inside = True, self._clock.now(), True
            try:
                yield from self._through(source, current)
            except GeneratorExit:  # the script left its loop
                self._steps.end_pass()
                rates.leave_pass()
                raise
            finally:
                self.inside = False
                self._lifecycle.spend("train", self._clock.now() - began)
        if trained:
            self._steps.end_pass()
            rates.end_pass()
            self._engine.end_pass(adopted=current.adopted)
            parts.checkpointer.after_pass(current)

    def _new_pass(
        self, reader: Reader, batch: int | None, fixed: bool, order: Tensor | None
    ) -> epoch_batches.Pass:
        chosen, workers = self._parts.environment.settings, self._engine.workers
        if chosen.epochs and self.epochs is None and order is None:
            raise InputError(
                "--epochs was given, but the script does not loop over run.epochs",
                "Loop like this: for epoch in run.epochs(10):",
            )
        wanted = epoch_batches.batch_of(chosen, batch or reader.batch)
        epoch_batches.check_sizes(len(reader), wanted, workers)
        number, self._passes = self._passes, self._passes + 1
        # In a loop without run.epochs, each pass is an epoch.
        epoch = number if self.epochs is None else self.epoch
        if order is None:
            start = self._schedule.start
            current = epoch_batches.new_pass(
                number, epoch, reader, wanted, chosen.seed, fixed=fixed, workers=workers,
                rank=self._engine.rank,
                lanes=start.lanes if number == start.pass_number else None,
            )  # fmt: skip
            if number == start.pass_number and start.position:
                epoch_batches.check_same_kind(start.lanes, current)
        else:
            current = epoch_batches.Pass(
                number, epoch, reader, len(order), wanted, order, adopted=True
            )
        if current.lanes is not None and current.lanes.pinned:
            check_pinned(self._schedule.spec)
        if note := getattr(current.lanes or reader, "note", None):
            self._figures.say_once(note)
        self._figures.plan(current)
        self._steps.open()
        return current

    def _through(self, source: Source, current: epoch_batches.Pass) -> Iterator[Any]:
        stopwatch, steps, engine = self._parts.stopwatch, self._steps, self._engine
        exchange, weight = engine.exchange, self._parts.trained.weight
        rates, segments = self._parts.rates, self._segments
        if self._parts.carried is not None:
            self._parts.carried.fixed = current.fixed
        while True:
            asked = stopwatch.asked()
            if segments.end_switch is not None:
                segments.end_switch(asked)
                segments.end_switch = None
            lease, batch = next(source, (None, None))
            if lease is None:
                return
            weight.new_batch(lease, current.batch, engine)
            if engine.goes_ahead:
                exchange.begin_batch(weight.scales)
            self.reached = lease.batch_end
            rates.batches += 1
            rates.reached = lease.batch_end
            stopwatch.received(asked, exchange.received(lease, batch))
            steps.in_batch, self.in_last_batch = True, lease.batch_end >= current.samples
            yield batch
            if self._passes != current.number + 1:
                raise InputError(
                    "run.batches was called again before its previous pass was over",
                    "Make one pass after the other; for two sets in one step, give one Dataset "
                    "that has both.",
                )
            steps.in_batch = False
            if lease.ends_round:
                steps.end_round()
            if engine.lockstep and engine.directives.cut and (lease.ends_round or not engine.apart):
                segments.reached = lease.batch_end
                source.close()  # type: ignore[attr-defined]  # what was read ahead is read again
                return

    # -- the end -----------------------------------------------------------------------------

    def finish(self, *, collective: bool = True, writes_later: bool = False) -> None:
        """End the training, with the final weights in ordinary tensors of the model; with
        ``writes_later``, its last checkpoint may still be being written."""
        parts, lifecycle = self._parts, self._lifecycle
        if self._forget_exit is not None:
            self._forget_exit()
        if lifecycle.over:
            return
        parts.evaluator.end_epoch(NEVER - 1)
        self._steps.end_pass()
        parts.checkpointer.save_skipped(collective)
        with self._steps.ours:
            self._engine.finish(collective)
        self._steps.close()
        parts.rates.end()
        parts.readers.checks, parts.evaluator.snapshot = False, None
        checkpointer = parts.checkpointer
        (checkpointer.finish_later if writes_later else checkpointer.finish)()
        parts.rounding.close()
        if lifecycle.over:
            return  # it was a profile, of which nothing is kept
        sent, paths = parts.stopwatch.bytes_sent, parts.environment.paths
        try:
            self._check_weights("at the end of training")
        except NotFinite as error:
            lifecycle.end("failed", sent, self.epoch + 1)
            if collective:
                raise
            lifecycle.fail(str(error))
            return
        if parts.environment.rank == 0 and paths:
            save_state(state_of(parts.trained.models), paths.model)
        lifecycle.end("done", sent, self.epoch + 1)
        if self._engine.workers > 1:
            parts.seeds.common()

    def _at_exit(self) -> None:
        """Finish a training whose script left its loop early; if it failed, its checkpoint."""
        if self._lifecycle.broken():
            self._parts.checkpointer.end_write()
        elif not self._lifecycle.over:
            try:
                self.finish(collective=False)
            except PeerLost:
                pass  # other workers may be gone already
            except Exception as error:
                self._lifecycle.fail(str(error))
                if not isinstance(error, PhalanxError | OSError):
                    raise  # unforeseen errors are shown with their traceback
