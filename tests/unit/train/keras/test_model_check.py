"""Models that need a whole batch are refused; those that work sample by sample are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phalanx.core.errors import InputError
from phalanx.train.keras.loss_check import check_loss

X = np.random.default_rng(0).normal(size=(14, 6, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(14, 2)).astype("float32")


def _check(keras: Any, *layers: Any, batch_size: int | None = None) -> None:
    keras.utils.set_random_seed(0)
    begin = keras.Input((6, 3), batch_size=batch_size)
    model = keras.Sequential([begin, *layers, keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model._symbolic_build(data_batch=(X, Y))
    assert check_loss(model, [(X, Y)]) is None


APART: dict[str, Callable[[Any], Any]] = {
    "dense": lambda layers: layers.Dense(4, "relu"),
    "batch-norm": lambda layers: layers.BatchNormalization(),  # in training, and it is said
    "layer-norm": lambda layers: layers.LayerNormalization(),
    "dropout": lambda layers: layers.Dropout(0.5),
    "lstm": lambda layers: layers.LSTM(4),
    "attention": lambda layers: layers.Lambda(lambda x: x - x.mean(1, keepdims=True)),
}


@pytest.mark.parametrize("name", APART)
def test_sample_by_sample(keras: Any, name: str) -> None:
    _check(keras, APART[name](keras.layers))


def test_samples_that_see_each_other(keras: Any) -> None:
    centred = keras.layers.Lambda(lambda x: x - x.mean(0, keepdims=True))
    with pytest.raises(InputError, match="depends on the other samples"):
        _check(keras, centred)


def test_states_of_samples(keras: Any) -> None:
    with pytest.raises(InputError, match="is stateful"):
        _check(keras, keras.layers.LSTM(4, stateful=True), batch_size=14)


def test_a_number_of_samples_that_is_fixed(keras: Any) -> None:
    by_number = keras.layers.Lambda(lambda x: keras.ops.reshape(x, (14, 3, 6)))
    with pytest.raises(InputError, match="fails on a part of a batch"):
        _check(keras, by_number, batch_size=14)


def test_a_batch_size_that_only_the_input_names(keras: Any) -> None:
    """Keras itself takes any number of samples then; and a model that is built by its first batch
    has such an input too."""
    _check(keras, keras.layers.Dense(4), batch_size=14)
