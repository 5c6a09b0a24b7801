"""Keras in the process of the tests, on the CPU; the environment stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest


def keras_on(backend: str) -> Any:
    """The module; the test is skipped where it is not installed, or has another backend."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", backend)
        patch.setenv("KERAS_TORCH_DEVICE", "cpu")
        keras = pytest.importorskip("keras")
    if keras.backend.backend() != backend:
        pytest.skip(f"Keras was imported with {keras.backend.backend()}")
    return keras


@contextmanager
def in_doubles(keras: Any) -> Iterator[None]:
    """Inside, Keras makes variables and rates of float64."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        yield
    finally:
        keras.config.set_floatx(before)


class Alone:
    """In place of the meeting of workers, where there is one."""

    @staticmethod
    def gather(value: Any) -> list[Any]:
        return [value]

    @staticmethod
    def from_first(value: Any) -> Any:
        return value


def noting_model(keras: Any) -> Any:
    """A model that learns nothing, and notes the first column of each batch it is given."""

    class Noting(keras.Model):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)
            self.seen: list[list[int]] = []

        def call(self, x: Any) -> Any:
            return self.layer(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, *_ = keras.utils.unpack_x_y_sample_weight(data)
            self.seen.append(x[:, 0].int().tolist())
            found: dict[str, Any] = super().train_step(data)
            return found

    model = Noting()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def numbered(samples: int) -> tuple[Any, Any]:
    """Inputs whose first column is their number, and targets."""
    numbers = np.arange(samples, dtype=float)
    return np.stack([numbers, numbers % 3], axis=1), numbers[:, None] / samples
