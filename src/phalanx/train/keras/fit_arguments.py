"""What ``fit`` is asked for, and the epochs that Keras itself makes of its data."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any


@dataclass
class FitArguments:
    """The arguments of ``fit``."""

    x: Any
    y: Any
    batch_size: int | None
    epochs: int
    verbose: Any
    callbacks: Any
    validation_split: float
    validation_data: Any
    shuffle: Any
    class_weight: Any
    sample_weight: Any
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: Any

    @staticmethod
    def of(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> FitArguments:
        """The arguments as Keras' own ``fit``, ``plain``, understands them."""
        given = inspect.signature(plain).bind(*args, **kwargs)
        given.apply_defaults()
        asked = FitArguments(
            **{field.name: given.arguments[field.name] for field in fields(FitArguments)}
        )
        asked._split()
        return asked

    def _split(self) -> None:
        from keras.src.trainers.data_adapters import array_slicing

        if self.validation_split and self.validation_data is None:
            whole = self.x, self.y, self.sample_weight
            (self.x, self.y, self.sample_weight), self.validation_data = (
                array_slicing.train_validation_split(whole, validation_split=self.validation_split)
            )


_ITERATORS = {
    "torch": "TorchEpochIterator",
    "tensorflow": "TFEpochIterator",
    "jax": "JAXEpochIterator",
}


def epochs_of(model: Any, asked: FitArguments) -> Any:
    """Keras' own iterator of the epochs, as its backend has it."""
    from keras import backend

    name = backend.backend()
    kind = getattr(importlib.import_module(f"keras.src.backend.{name}.trainer"), _ITERATORS[name])
    more = {"distribute_strategy": model.distribute_strategy} if name == "tensorflow" else {}
    return kind(
        x=asked.x, y=asked.y, sample_weight=asked.sample_weight, batch_size=asked.batch_size,
        steps_per_epoch=asked.steps_per_epoch, shuffle=asked.shuffle,
        class_weight=asked.class_weight, **more,
    )  # fmt: skip


def batches_of(epochs: Any) -> Iterator[Any]:
    """The batches of one epoch."""
    with epochs.catch_stop_iteration():
        for _, _, found in epochs:
            yield found[0] if isinstance(found, list) else next(found)


def build_as_keras(model: Any, epochs: Any, batch_of: Callable[[Any], Any]) -> None:
    """Look at a first batch where Keras itself would, so that the data go on from there.

    On TensorFlow it does not: the model is built by the first step.
    """
    from keras import backend

    def look() -> Iterator[Any]:
        for found in batches_of(epochs):
            yield 0, 0, [batch_of(found)]

    if backend.backend() != "tensorflow":
        model._symbolic_build(iterator=look())
    epochs.reset()
