"""Losses that are means over the samples of a batch are accepted, all others refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.core.errors import InputError
from phalanx.train.keras.loss_check import check_loss

SAMPLES = 24


def _batch(weights: bool = False) -> tuple[Any, ...]:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(SAMPLES, 3)), draw.normal(size=(SAMPLES, 2))
    return (x, y, draw.uniform(0.1, 2.0, SAMPLES)) if weights else (x, y)


def _check(model: Any, batch: Any) -> str | None:
    """As fit does: the model knows its data."""
    model._symbolic_build(data_batch=batch)
    return check_loss(model, [batch])


def _model(keras: Any, loss: Any, *layers: Any) -> Any:
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])
    made.compile("sgd", loss)
    return made


def _squares(keras: Any) -> Callable[[Any, Any], Any]:
    """A function of the script's own: one loss for each sample."""
    return lambda y, found: keras.ops.mean((y - found) ** 2, axis=-1)


def _divided(keras: Any) -> Callable[[Any, Any], Any]:
    """A mean over what counts, which is not the same in every part of a batch."""

    def loss(y: Any, found: Any) -> Any:
        counts = keras.ops.cast(y > 0, "float64")
        return keras.ops.sum(counts * (y - found) ** 2) / keras.ops.sum(counts)

    return loss


MEANS: dict[str, Callable[[Any], Any]] = {
    "name": lambda keras: "mse",
    "function-of-keras": lambda keras: keras.losses.mean_absolute_error,
    "class": lambda keras: keras.losses.Huber(),
    "own": _squares,
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda keras: keras.losses.MeanSquaredError(reduction="sum"),
    "dice": lambda keras: keras.losses.Dice(),
    "own-sum": lambda keras: lambda y, found: keras.ops.sum((y - found) ** 2),
    "own-root": lambda keras: lambda y, found: keras.ops.sqrt(keras.ops.mean((y - found) ** 2)),
    "own-division": _divided,
    "own-nearly": lambda keras: (
        lambda y, found: (
            keras.ops.mean((y - found) ** 2) * (1 + 8e-4 / len(y))  # by a share of 5e-5
        )
    ),
    "own-greatest": lambda keras: lambda y, found: keras.ops.max((y - found) ** 2),
}


@pytest.mark.parametrize("weights", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("loss", MEANS.values(), ids=list(MEANS))
def test_means_are_accepted(keras: Any, loss: Callable[[Any], Any], weights: bool) -> None:
    assert _check(_model(keras, loss(keras)), _batch(weights)) is None


def test_one_number_for_the_batch(keras: Any) -> None:
    """It is a mean, unless Keras multiplies it by weights of samples."""
    model = _model(keras, lambda y, found: keras.ops.mean((y - found) ** 2))
    assert _check(model, _batch()) is None
    with pytest.raises(InputError, match="not a mean"):
        _check(model, _batch(weights=True))


@pytest.mark.parametrize("loss", OTHERS.values(), ids=list(OTHERS))
def test_others_are_refused(keras: Any, loss: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match=r"not a mean over the samples|a sum over the samples"):
        _check(_model(keras, loss(keras)), _batch())


def test_a_division_by_the_weights_is_refused(keras: Any) -> None:
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    with pytest.raises(InputError, match="not a mean"):
        _check(_model(keras, loss), _batch(weights=True))
    assert _check(_model(keras, loss), _batch()) is None


def test_one_of_several_losses_is_enough(keras: Any) -> None:
    inputs = keras.Input((3,))
    outputs = [keras.layers.Dense(2)(inputs), keras.layers.Dense(2)(inputs)]
    model = keras.Model(inputs, outputs)
    x, y = _batch()
    model.compile("sgd", ["mse", "mae"])
    assert _check(model, (x, (y, y))) is None
    model.compile("sgd", ["mse", keras.losses.MeanAbsoluteError(reduction="sum")])
    with pytest.raises(InputError, match="a sum over the samples"):
        _check(model, (x, (y, y)))


def test_losses_of_the_weights_are_accepted(keras: Any) -> None:
    """They are the same in every part of a batch."""
    layer = keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.3))
    assert _check(_model(keras, "mse", layer), _batch()) is None
    assert _check(_model(keras, _squares(keras), layer), _batch()) is None


def test_a_sum_that_a_layer_adds_is_refused(keras: Any) -> None:
    """The compiled loss says nothing of it."""

    class Adds(keras.layers.Layer):  # type: ignore[name-defined, misc]
        def call(self, x: Any) -> Any:
            self.add_loss(keras.ops.sum(x**2))
            return x

    with pytest.raises(InputError, match="not a mean"):
        _check(_model(keras, "mse", Adds()), _batch())


# -- masks ----------------------------------------------------------------------------------------


def _words(keras: Any, *layers: Any) -> tuple[Any, Any]:
    """A model of words where 0 is none, and a batch with some that are none."""
    model = keras.Sequential(
        [keras.Input((5,), dtype="int32"), keras.layers.Embedding(7, 3, mask_zero=True), *layers]
    )
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).integers(0, 7, (SAMPLES, 5))
    return model, (x, model.predict(x, verbose=0) + 1)


def test_a_mask_of_the_output_is_refused(keras: Any) -> None:
    model, batch = _words(keras, keras.layers.Dense(2))
    with pytest.raises(InputError, match="mask"):
        _check(model, batch)


def test_a_mask_that_ends_inside_is_accepted(keras: Any) -> None:
    model, batch = _words(keras, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2))
    assert _check(model, batch) is None


def test_a_layer_that_masks_is_seen_inside_others(keras: Any) -> None:
    inner = keras.Sequential([keras.layers.Masking()])
    model = keras.Sequential([keras.Input((5, 3)), inner, keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x = np.zeros((SAMPLES, 5, 3))
    with pytest.raises(InputError, match="mask"):
        _check(model, (x, np.zeros((SAMPLES, 5, 2))))


# -- what cannot be tried -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["train_step", "compute_loss"])
def test_a_step_of_its_own_is_noted(keras: Any, method: str) -> None:
    def own(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(keras.Sequential, method)(self, *args, **kwargs)

    kind = type("Own", (keras.Sequential,), {method: own})
    model = kind([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    assert "train_step or compute_loss" in (_check(model, _batch()) or "")


def test_a_batch_of_two_is_too_short_to_try(keras: Any) -> None:
    """Which is said; a sum says itself what it is."""
    x, y = _batch()
    found = _check(_model(keras, OTHERS["own-sum"](keras)), (x[:2], y[:2]))
    assert found is not None and "too small" in found
    with pytest.raises(InputError, match="a sum over the samples"):
        _check(_model(keras, OTHERS["sum"](keras)), (x[:2], y[:2]))


def test_labels_that_are_ignored(keras: Any) -> None:
    """The mean is over those that count: not the same number in every part."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1)
    x, _ = _batch()
    with pytest.raises(InputError, match="ignore_class"):
        _check(_model(keras, loss), (x, np.arange(SAMPLES) % 2))


def test_what_only_later_samples_show(keras: Any) -> None:
    """The first batch has nothing that does not count."""
    model, (x, y) = _model(keras, _divided(keras)), _batch()
    first, later = (x, np.abs(y)), (x, y)
    model._symbolic_build(data_batch=first)
    assert check_loss(model, [first]) is None
    with pytest.raises(InputError, match="not a mean over the samples"):
        check_loss(model, [first, later])


def test_trying_leaves_no_trace(keras: Any) -> None:
    """Neither in the weights nor in the random numbers that training will draw."""
    model = _model(keras, _squares(keras), keras.layers.Dropout(0.5))
    model._symbolic_build(data_batch=_batch())
    before = [v.numpy().copy() for v in model.variables]
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[union-attr]
    _check(model, _batch())
    assert all(map(np.array_equal, before, [v.numpy() for v in model.variables]))
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])
