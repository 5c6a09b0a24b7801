"""``fit`` of a Keras model on all workers: Keras' callbacks and metrics, Phalanx' steps.

The loop is Phalanx' own, because Keras' iterators read ahead and would claim samples early. What a
step computes is the model's own ``train_step``, see :mod:`phalanx.adapters.keras.keras_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from phalanx.adapters.keras.optimizers import rate_of, read_state, rule_of, write_state
from phalanx.core.errors import InputError
from phalanx.train.keras import setup
from phalanx.train.keras.arrays import FitArguments
from phalanx.train.keras.callbacks import (
    acts_inside,
    callbacks_of,
    given_callbacks,
    is_own,
    may_save,
    sees_batches,
)
from phalanx.train.keras.epoch_sync import EpochSync, KeptRate
from phalanx.train.keras.loss_check import check_loss
from phalanx.train.loop.segments import WorkerParts
from phalanx.train.loop.training_loop import TrainingLoop
from phalanx.train.start.environment import Environment, detect
from phalanx.train.step.gradient_weight import NEXT_TO_NOTHING
from phalanx.train.worker.build_worker import build_worker


def shared_fit(model: Any, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replaces ``model.fit(…)``; ``plain`` is Keras' own."""
    model._assert_compile_called("fit")
    return SharedFit(model, FitArguments.of(plain, *args, **kwargs)).train()


class SharedFit:
    def __init__(self, model: Any, asked: FitArguments) -> None:
        self._model, self._asked, environment = model, asked, detect()
        if environment.thread and environment.workers > 1:
            raise InputError(
                "Keras models cannot train in threads (--launcher inprocess, phalanx simulate)",
                "Use phalanx run without --launcher inprocess, or phalanx simulate --time-only.",
            )
        setup.check_options(environment, model)
        setup.check_clipping(model.optimizer, environment)
        alone = environment.arena is None and environment.settings.profile is None
        backend = setup.backend_of(alone=alone)
        chosen = environment.settings.epochs
        self._epochs = asked.initial_epoch + chosen if chosen else asked.epochs
        self._seeds = setup.KerasSeeds(model)
        self._source = setup.source_of(model, asked, environment, backend, self._seeds)
        note = check_loss(model, self._source.samples) if environment.workers > 1 else None
        self._mirror = backend(model)
        self._rule = self._mirror.rule = rule_of(self._mirror)
        read_state(self._mirror, self._rule)
        device = (
            self._mirror.parameters[0].device if self._mirror.parameters else environment.device
        )
        self._parts, self._loop = self._join(replace(environment, device=device))
        self._reader = self._parts.readers.of(self._source.reader, trains=True)
        self._parts.trained.keepers["keras"] = KeptRate(model.optimizer)
        self._meeting = EpochSync(self._parts, self._mirror)
        self._done = int(model.optimizer.iterations)
        """Steps of all epochs before."""
        self._seen = 0.0, 0
        """The epoch's sum of losses times samples, and its samples."""
        self._stops = False
        """Whether a callback asked to stop during an epoch; all workers first end that epoch."""
        given = given_callbacks(asked.callbacks)
        self._watched = any(map(sees_batches, given))
        notes = {note: True, setup.RESUMED: self._parts.resumed is not None}
        notes[setup.SEES_A_PART] = environment.workers > 1 and any(map(acts_inside, given))
        for words in filter(None, (words for words, said in notes.items() if said)):
            self._parts.figures.say_once(words)
        # Callbacks of the script may save, and change weights before an epoch.
        self._own_callbacks = any(map(is_own, given))
        self._saves = self._rule if any(map(may_save, given)) else None
        self._counted = -1
        """The number of steps that the optimizer has now."""
        self._logs: dict[str, Any] = {}
        """Keras' logs of the last batch."""

    def _join(self, environment: Environment) -> tuple[WorkerParts, TrainingLoop]:
        parts, loop = build_worker(
            environment, self._mirror.module, self._rule, seeds=self._seeds,
            notes=setup.notes_of(self._mirror, self._source, environment.workers),
        )  # fmt: skip
        loop.adopt(max(self._epochs - self._asked.initial_epoch, 0))
        parts.steps.keeps_gradients = False
        if self._mirror.alone:
            parts.trained.engine.exchange.alone = [self._mirror]
        self._mirror.begin_epoch()  # read the state again: seeds were set apart meanwhile
        self._mirror.show_frozen()
        self._mirror.load()
        self._mirror.show()
        return parts, loop

    def train(self) -> Any:
        asked, model, meeting = self._asked, self._model, self._meeting
        callbacks = callbacks_of(
            model, asked.callbacks, first=meeting.is_first, verbose=asked.verbose,
            launched=self._parts.environment.launched, epochs=self._epochs,
            steps=self._source.steps,
        )  # fmt: skip
        model.stop_training = False
        with meeting.in_common():
            callbacks.on_train_begin()
        logs: dict[str, Any] = {}
        for epoch in range(asked.initial_epoch, self._epochs):
            if self._loop.is_before_checkpoint:
                self._train_epoch(None)
                continue
            model.reset_metrics()
            meeting.check_metrics()
            self._mirror.begin_epoch()
            with meeting.in_common() if self._own_callbacks else nullcontext():
                callbacks.on_epoch_begin(epoch)
            self._mirror.begin_epoch()
            meeting.follow_first()
            self._train_epoch(callbacks)
            with meeting.in_common(self._saves):
                logs = self._figures(epoch, callbacks)
                callbacks.on_epoch_end(epoch, logs)
                model.stop_training = model.stop_training or self._stops
                meeting.follow_first()
            if model.stop_training:
                break
        with meeting.in_common(self._saves):
            callbacks.on_train_end(logs)
            model.history.history = meeting.from_first(model.history.history, as_numpy=True)
        self._finish()
        return model.history

    def _train_epoch(self, callbacks: Any) -> None:
        """Train an epoch; epochs before the resumed checkpoint have no batches left."""
        source = self._source
        order = source.begin(self._meeting)
        batches = self._loop.through_adopted(self._reader, order, source.batch)
        for number, batch in enumerate(batches):
            step = self._done + (self._loop.reached - 1) // source.batch  # of all workers
            if not number and self._parts.resumed is not None:
                self._mirror.count_steps(step)
                self._show_restored()
            self._seeds.enter_pass()
            with self._watching(step):
                callbacks.on_train_batch_begin(number)
            logs = self._step(*source.unpack(batch, self._parts.stopwatch.batch_samples), step)
            with self._watching(step + 1):
                callbacks.on_train_batch_end(number, logs)
            if self._loop.in_last_batch:
                self._mirror.read_buffers()
            if self._model.stop_training:
                self._stops = True
                if self._meeting.workers > 1:
                    self._parts.figures.say_once(setup.STOPS_LATER)
                if self._meeting.workers == 1:
                    batches.close()  # type: ignore[attr-defined]
                    break
        self._seeds.leave_pass()  # from here on all workers draw alike
        if not self._stops or self._meeting.workers > 1:
            source.end(self._meeting)
        self._done += -(-self._loop.reached // source.batch) if self._stops else source.drawn
        self._model.optimizer._iterations.assign(self._done)
        self._seen = 0.0, 0

    def _show_restored(self) -> None:
        self._mirror.load()
        self._mirror.show()
        self._mirror.begin_epoch()

    def _step(self, batch: Any, samples: int, step: int) -> dict[str, Any]:
        """Take a step; ``samples``: how many samples of the batch count."""
        mirror = self._mirror
        if self._source.weighs:
            self._parts.stopwatch.loss_samples = samples
        counted = None if samples else mirror.save_metrics()
        checks = mirror.own_step and not self._logs and self._meeting.workers > 1
        # Keras reads each gradient as a script does that clips; do not take that for clipping.
        with nullcontext() if mirror.own_step else self._parts.steps.ours:
            logs = (mirror.checked_gradients if checks else mirror.gradients)(batch)
        self._logs = logs
        if counted is not None:
            self._mirror.restore_metrics(counted)
        rate = rate_of(self._model.optimizer, step)
        for group in self._rule.param_groups:
            group["lr"] = rate
        self._note_loss(logs, samples)
        clip, weight = self._model.optimizer.global_clipnorm, self._weight(samples)
        self._parts.steps.step(clip=clip, weight=weight)
        self._mirror.load()
        return logs

    def _weight(self, samples: int) -> float | None:
        """Return the weight of a batch; ``None`` if the assignment of samples decides it."""
        parties = self._parts.trained.engine.parties
        if not self._source.weighs or (samples and parties == 1):
            return None
        return max(samples / self._source.batch * parties, NEXT_TO_NOTHING)

    @contextmanager
    def _watching(self, steps: int) -> Iterator[None]:
        """Show the weights to callbacks that act between batches, and refuse changes."""
        mirror = self._mirror
        lends = self._watched and not mirror.shares_memory  # the engine watches shared memory
        counts = mirror.own_step or (self._watched and not lends)
        if counts and steps != self._counted:
            mirror.count_steps(steps)
            self._counted = steps
        if not lends:
            yield
            return
        with mirror.lent(steps) as written:
            yield
        if written:
            raise InputError(
                f"a callback changed {written[0].path} between two batches",
                "Change weights at the end of an epoch: on_epoch_end.",
            )

    def _note_loss(self, logs: dict[str, Any], samples: int) -> None:
        """Find the batch's own loss, as Keras gives the mean of the epoch so far."""
        mirror = self._mirror
        if "loss" not in logs or not samples or mirror.shows_losses or mirror.own_step:
            return
        before, seen = self._seen
        whole = float(logs["loss"]) * (seen + samples)
        self._parts.stopwatch.loss(torch.tensor((whole - before) / samples))
        self._seen = whole, seen + samples

    def _figures(self, epoch: int, callbacks: Any) -> dict[str, Any]:
        """Return the epoch's figures: of training, over all workers, and of validation."""
        from keras.src.utils.python_utils import pythonify_logs

        model, asked = self._model, self._asked
        self._meeting.add_metrics()
        logs: dict[str, Any] = pythonify_logs(model.get_metrics_result())
        if set(self._logs) - set(logs):  # Keras then logs what the train_step returned
            logs = self._meeting.mean_logs(self._logs)
        if asked.validation_data is not None and model._should_eval(epoch, asked.validation_freq):
            found = self._validate(callbacks)
            logs |= {f"val_{name}": value for name, value in pythonify_logs(found).items()}
        if self._parts.environment.launched:
            tells = self._mirror.own_step and not self._mirror.shows_losses
            shown = {n: v for n, v in logs.items() if isinstance(v, int | float)}
            if not tells:
                shown.pop("loss", None)  # the batches have logged it
            self._parts.figures.log({_column(name): value for name, value in shown.items()})
        return logs

    def _validate(self, callbacks: Any) -> dict[str, Any]:
        """Evaluate the validation data: a part on each worker, or all if it is a stream."""
        asked, model, meeting = self._asked, self._model, self._meeting
        whole = asked.validation_steps is not None or setup.tests_itself(model)
        began = self._parts.stopwatch.clock.now()
        part = part_of(asked.validation_data, meeting.rank, 1 if whole else meeting.workers)
        found: dict[str, Any] = model.evaluate(
            **(part or unpacked(asked.validation_data)), steps=asked.validation_steps,
            batch_size=asked.validation_batch_size or asked.batch_size, callbacks=callbacks,
            verbose=0, return_dict=True,
        )  # fmt: skip
        self._parts.lifecycle.spend("evaluate", self._parts.stopwatch.clock.now() - began)
        if part is None:
            return found
        meeting.add_metrics()
        return dict(model.get_metrics_result())

    def _finish(self) -> None:
        self._loop.finish()
        self._mirror.load()
        self._mirror.show()
        write_state(self._rule, self._mirror)


def _column(name: str) -> str:
    """Return the name of a Keras figure in Phalanx' reports."""
    return name.replace("val_", "validation_", 1) if name.startswith("val_") else f"train_{name}"


def unpacked(data: Any) -> dict[str, Any]:
    from keras.src.trainers.data_adapters import data_adapter_utils

    x, y, weights = data_adapter_utils.unpack_x_y_sample_weight(data)
    return {"x": x, "y": y, "sample_weight": weights}


def part_of(data: Any, rank: int, workers: int) -> dict[str, Any] | None:
    """Return this worker's part of the data; ``None`` if they cannot be cut."""
    from keras import tree
    from keras.src.trainers.data_adapters import array_data_adapter

    given = unpacked(data)
    if workers == 1 or not array_data_adapter.can_convert_arrays(tuple(given.values())):
        return None
    leaves = [leaf for leaf in tree.flatten(given) if leaf is not None]
    samples = leaves[0].shape[0] if hasattr(leaves[0], "shape") else len(leaves[0])
    if samples < workers or not all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return None
    rows = slice(rank * samples // workers, (rank + 1) * samples // workers)
    cut: dict[str, Any] = tree.map_structure(
        lambda leaf: None if leaf is None else leaf[rows], given
    )
    return cut
