"""``fit`` of a Keras model on all workers: Keras' callbacks and metrics, Phalanx' steps.

The loop is Phalanx' own, because Keras' iterators read ahead and would claim samples early. What a
step computes is the model's own ``train_step``, see :mod:`phalanx.adapters.keras.guest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from phalanx.adapters.keras.guest import Guest
from phalanx.adapters.keras.optimizers import read_state, rule_of, write_state
from phalanx.core.errors import InputError
from phalanx.core.spec import parse_spec
from phalanx.train.keras.arrays import ArraySource
from phalanx.train.keras.callbacks import callbacks_of
from phalanx.train.keras.epochs import Asked
from phalanx.train.keras.loss_check import check_loss
from phalanx.train.keras.meeting import Meeting
from phalanx.train.keras.seeds import KerasSeeds
from phalanx.train.keras.streams import StreamSource
from phalanx.train.keras.validation import part_of, unpacked
from phalanx.train.loop.assembly import build_worker
from phalanx.train.loop.gradient_weight import NEXT_TO_NOTHING
from phalanx.train.loop.stretches import WorkerParts
from phalanx.train.loop.training_loop import TrainingLoop
from phalanx.train.start.environment import Environment, detect


def shared_fit(model: Any, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of ``model.fit(…)``, which is ``plain``."""
    model._assert_compile_called("fit")
    return SharedFit(model, Asked.of(plain, *args, **kwargs)).train()


RESUMED = (
    "resumed: the script runs from its start, and passes over the epochs before the checkpoint; "
    "callbacks begin anew"
)


class KeptRate:
    """The learning rate that callbacks have set, as it is saved with the run."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        rate = self._optimizer._learning_rate
        return {} if callable(rate) else {"rate": float(rate)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "rate" in state:
            self._optimizer.learning_rate = state["rate"]


class SharedFit:
    def __init__(self, model: Any, asked: Asked) -> None:
        self._model, self._asked, environment = model, asked, detect()
        if environment.thread and environment.workers > 1:
            raise InputError(
                "Keras models are not trained by workers that are threads",
                "Leave out --launcher inprocess.",
            )
        if environment.settings.profile is not None:
            raise InputError(
                "the steps of a Keras model are not measured yet",
                "Name machines and strategy: phalanx run SCRIPT --machines all --strategy "
                "allreduce",
            )
        _check_clipping(model.optimizer, environment)
        backend = backend_of()
        self._epochs = environment.settings.epochs or asked.epochs
        self._seeds = KerasSeeds(model)
        self._source = _source_of(model, asked, environment, backend, self._seeds)
        note = check_loss(model, self._source.first) if environment.workers > 1 else None
        self._guest = backend(model)
        self._rule = rule_of(model.optimizer, self._guest.variables, self._guest.parameters)
        read_state(model.optimizer, self._guest.parameters, self._rule)
        self._parts, self._loop = self._join(environment)
        self._reader = self._parts.readers.of(self._source.reader, trains=True)
        self._parts.trained.keepers["keras"] = KeptRate(model.optimizer)
        notes = [note, RESUMED if self._parts.resumed is not None else None]
        for words in filter(None, notes):
            self._parts.figures.say_once(words)
        self._meeting = Meeting(self._parts, self._guest)
        self._done = int(model.optimizer.iterations)
        """Steps of all epochs before."""
        self._seen = 0.0, 0
        """Of the epoch: losses times samples, and samples."""
        self._stops = False
        """Whether a callback asked for it inside an epoch, which all workers end first."""

    def _join(self, environment: Environment) -> tuple[WorkerParts, TrainingLoop]:
        parts, loop = build_worker(
            environment, self._guest.module, self._rule, buffers="auto", loss="mean", trial=None,
            seeds=self._seeds, notes=self._notes(),
        )  # fmt: skip
        loop.adopt(self._epochs)
        parts.steps.keeps_gradients = False
        self._guest.show_frozen()
        self._guest.load()
        self._guest.show()
        return parts, loop

    def _notes(self) -> list[str]:
        model, source = self._model, self._source
        count = sum(p.numel() for p in self._guest.parameters)
        return [
            f"Keras: {type(model).__name__} of {count:,} parameters, "
            f"{type(model.optimizer).__name__}; {source.words}, batch {source.batch}"
        ]

    def train(self) -> Any:
        asked, model, meeting = self._asked, self._model, self._meeting
        callbacks = callbacks_of(
            model, asked.callbacks, first=meeting.is_first, verbose=asked.verbose,
            launched=self._parts.environment.launched, epochs=self._epochs,
            steps=self._source.steps,
        )  # fmt: skip
        model.stop_training = False
        callbacks.on_train_begin()
        logs: dict[str, Any] = {}
        for epoch in range(model._initial_epoch or asked.initial_epoch, self._epochs):
            if self._loop.is_before_checkpoint:
                self._train_epoch(None)
                continue
            model.reset_metrics()
            self._guest.begin_epoch()
            callbacks.on_epoch_begin(epoch)
            meeting.follow_first()
            self._train_epoch(callbacks)
            with meeting.in_common():
                logs = self._figures(epoch, callbacks)
                callbacks.on_epoch_end(epoch, logs)
                model.stop_training = model.stop_training or self._stops
                meeting.follow_first()
            if model.stop_training:
                break
        with meeting.in_common():
            callbacks.on_train_end(logs)
        self._finish()
        return model.history

    def _train_epoch(self, callbacks: Any) -> None:
        """``None``: an epoch before the checkpoint that is resumed has no batches any more."""
        source = self._source
        order = source.begin(self._meeting)
        batches = self._loop.through_adopted(self._reader, order, source.batch)
        for number, batch in enumerate(batches):
            if not number and self._parts.resumed is not None:
                self._show_restored()
            self._seeds.enter_pass()
            callbacks.on_train_batch_begin(number)
            logs = self._step(*source.unpack(batch, self._parts.stopwatch.batch_samples))
            callbacks.on_train_batch_end(number, logs)
            if self._model.stop_training:
                self._stops = True
                if self._meeting.workers == 1:
                    batches.close()  # type: ignore[attr-defined]
                    break
        self._seeds.leave_pass()  # what follows is drawn by all alike
        if not self._stops or self._meeting.workers > 1:
            source.end(self._meeting)
        self._done += -(-self._loop.reached // source.batch) if self._stops else source.steps
        self._model.optimizer._iterations.assign(self._done)
        self._seen = 0.0, 0

    def _show_restored(self) -> None:
        self._guest.load()
        self._guest.show()
        self._guest.begin_epoch()

    def _step(self, batch: Any, samples: int) -> dict[str, Any]:
        """``samples``: of the batch, those that count."""
        counted = None if samples else self._guest.save_metrics()
        logs = self._guest.gradients(batch)
        if counted is not None:
            self._guest.restore_metrics(counted)
        rate = self._rate()
        for group in self._rule.param_groups:
            group["lr"] = rate
        self._note_loss(logs, samples)
        clip, weight = self._model.optimizer.global_clipnorm, self._weight(samples)
        self._parts.steps.step(clip=clip, weight=weight)
        self._guest.load()
        return logs

    def _weight(self, samples: int) -> float | None:
        """``None``: as the ledger says. It knows nothing of a batch that is shorter than others."""
        parties = self._parts.trained.engine.parties
        if not self._source.weighs or (samples and parties == 1):
            return None
        return max(samples / self._source.batch * parties, NEXT_TO_NOTHING)

    def _rate(self) -> float:
        """A schedule is asked for the step that all workers have come to."""
        rate = self._model.optimizer._learning_rate
        if callable(rate):
            return float(rate(self._done + (self._loop.reached - 1) // self._source.batch))
        return float(rate)

    def _note_loss(self, logs: dict[str, Any], samples: int) -> None:
        """Keras tells the mean of the epoch so far: what of it is the batch in hand's."""
        if "loss" not in logs or not samples or self._guest.shows_losses:
            return
        before, seen = self._seen
        whole = float(logs["loss"]) * (seen + samples)
        self._parts.stopwatch.loss(torch.tensor((whole - before) / samples))
        self._seen = whole, seen + samples

    def _figures(self, epoch: int, callbacks: Any) -> dict[str, Any]:
        """Of training, over all workers, and of validation."""
        model, asked = self._model, self._asked
        self._meeting.add_metrics()
        logs = {name: float(value) for name, value in model.get_metrics_result().items()}
        if asked.validation_data is not None and model._should_eval(epoch, asked.validation_freq):
            found = self._validate(callbacks)
            logs |= {f"val_{name}": float(value) for name, value in found.items()}
        if self._parts.environment.launched:
            self._parts.figures.log({_column(n): v for n, v in logs.items() if n != "loss"})
        return logs

    def _validate(self, callbacks: Any) -> dict[str, Any]:
        """Of arrays each worker evaluates a part; of a stream, all of it."""
        asked, model, meeting = self._asked, self._model, self._meeting
        part = part_of(asked.validation_data, meeting.rank, meeting.workers)
        found: dict[str, Any] = model.evaluate(
            **(part or unpacked(asked.validation_data)), steps=asked.validation_steps,
            batch_size=asked.validation_batch_size or asked.batch_size, callbacks=callbacks,
            verbose=0, return_dict=True,
        )  # fmt: skip
        if part is None:
            return found
        meeting.add_metrics()
        return dict(model.get_metrics_result())

    def _finish(self) -> None:
        self._loop.finish()
        self._guest.load()
        self._guest.show()
        write_state(self._rule, self._guest.parameters, self._model.optimizer)


def _column(name: str) -> str:
    """As Phalanx' reports name it."""
    return name.replace("val_", "validation_", 1) if name.startswith("val_") else f"train_{name}"


def _check_clipping(optimizer: Any, environment: Environment) -> None:
    phases = parse_spec(environment.settings.strategy).phases
    free = next((p.label for p in phases if not p.traits.any_optimizer), None)
    if optimizer.clipnorm and environment.workers > 1 and free is not None:
        raise InputError(
            f"clipnorm limits the gradient of each variable as a whole; under {free} variables are "
            "updated in parts",
            "Use global_clipnorm or clipvalue, or the strategy allreduce.",
        )


def _source_of(
    model: Any, asked: Asked, environment: Environment, guest: type[Guest], seeds: KerasSeeds
) -> ArraySource | StreamSource:
    from keras.src.trainers.data_adapters import array_data_adapter

    batch = environment.settings.batch
    if array_data_adapter.can_convert_arrays((asked.x, asked.y, asked.sample_weight)):
        return ArraySource(model, asked, batch, guest)
    if batch:
        raise InputError(
            "--batch has no effect: the script's data come in batches already",
            "Leave it out, and set the batch size where the data are made.",
        )
    return StreamSource(model, asked, guest, seeds.in_common)


def backend_of() -> type[Guest]:
    import keras

    match keras.backend.backend():
        case "torch":
            from phalanx.adapters.keras.torch_backend import TorchGuest

            return TorchGuest
        case "tensorflow":
            from phalanx.adapters.keras.tensorflow_backend import TensorFlowGuest

            return TensorFlowGuest
        case "jax":
            from phalanx.adapters.keras.jax_backend import JaxGuest

            return JaxGuest
        case other:
            raise InputError(
                f"Keras' backend {other} does not train", "Use torch, tensorflow or jax."
            )
