"""Arrays are read by number, in the order that plain Keras would take."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from keras_here import Alone, noting_model, numbered

from phalanx.adapters.keras.torch_backend import TorchKerasModel
from phalanx.train.keras.arrays import ArraySource, FitArguments

SAMPLES, EPOCHS = 23, 3
CASES: dict[str, dict[str, Any]] = {
    "shuffled": {"batch_size": 5},
    "in-order": {"batch_size": 5, "shuffle": False},
    "default-batch": {},
    "one-batch": {"batch_size": 40},
    "few-steps": {"batch_size": 5, "steps_per_epoch": 3},
}


def _source(model: Any, *args: Any, batch: int | None = None, **options: Any) -> ArraySource:
    asked = FitArguments.of(type(model).fit.__get__(model), *args, **options)
    return ArraySource(model, asked, batch, TorchKerasModel)


def _drawn(source: ArraySource, epochs: int) -> list[list[int]]:
    orders = []
    for _ in range(epochs):
        orders.append(source.begin(Alone()))  # type: ignore[arg-type]
        source.end(Alone())  # type: ignore[arg-type]
    return [part.tolist() for order in orders for part in order.split(source.batch)]


def test_another_batch_size_may_be_asked_for(keras: Any) -> None:
    """As if the script had said so."""
    keras.utils.set_random_seed(3)
    model = noting_model(keras)
    model.fit(*numbered(SAMPLES), epochs=1, batch_size=6, verbose=0)
    keras.utils.set_random_seed(3)
    source = _source(noting_model(keras), *numbered(SAMPLES), batch_size=5, batch=6)
    assert source.batch == 6 and source.steps == 4
    assert _drawn(source, 1) == model.seen


def test_rows_by_number(keras: Any) -> None:
    """Inputs may have names; what is not given stays away."""
    x, y = numbered(SAMPLES)
    inputs = {name: keras.Input((2,), name=name) for name in ("left", "right")}
    sums = keras.layers.Add()(list(inputs.values()))
    model = keras.Model(inputs, keras.layers.Dense(1)(sums))
    model.compile("sgd", "mse")
    source = _source(model, {"left": x, "right": 10 * x}, y)
    found, targets, *rest = source.reader.fetch(torch.tensor([7, 2, 2]), 0)
    assert found["left"][:, 0].tolist() == [7, 2, 2]
    assert found["right"][:, 0].tolist() == [70, 20, 20]
    assert targets[:, 0].tolist() == [7 / SAMPLES, 2 / SAMPLES, 2 / SAMPLES]
    assert all(each is None for each in rest)
    assert len(source.reader) == SAMPLES


def test_weights_of_samples_and_of_classes(keras: Any) -> None:
    x, _ = numbered(6)
    classes = np.array([0, 1, 1, 0, 2, 1])
    model = noting_model(keras)
    source = _source(model, x, classes, sample_weight=np.arange(6.0))
    assert source.reader.fetch(torch.tensor([5, 0, 3]), 0)[2].tolist() == [5, 0, 3]
    source = _source(model, x, classes, class_weight={0: 0.5, 1: 2.0, 2: 7.0})
    assert source.reader.fetch(torch.tensor([4, 0, 1]), 0)[2].tolist() == [7.0, 0.5, 2.0]


def test_a_worker_without_samples_reads_nothing(keras: Any) -> None:
    source = _source(noting_model(keras), *numbered(SAMPLES))
    orders = [("some", torch.tensor([1, 2])), ("none", torch.tensor([], dtype=torch.int64))]
    found = dict(source.reader.stream(orders, 0))
    assert found["none"] is None and len(found["some"][0]) == 2
