"""With one worker, ``fit`` of a joined model ends as plain ``fit`` does, number for number."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.core.errors import InputError
from phalanx.keras import join
from phalanx.train.keras.fitting import shared_fit

NEAR = 1e-9
SAMPLES = 50


def _data(classes: int = 0) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(SAMPLES, 4))
    if classes:
        return x, draw.integers(0, classes, SAMPLES)
    return x, np.tanh(x.sum(1, keepdims=True))


def _model(keras: Any, optimizer: Any = None, outputs: int = 1, **options: Any) -> Any:
    """A small smooth one, compiled."""
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(6, activation="tanh"), layers.Dense(outputs)]
    )
    loss = options.pop("loss", "mse")
    model.compile(optimizer or keras.optimizers.Adam(0.02), loss, **options)
    return model


def share(model: Any) -> None:
    """As a worker of a run does; ``join`` alone leaves ``fit`` as it is."""
    plain = type(model).fit.__get__(model)
    object.__setattr__(model, "fit", functools.partial(shared_fit, model, plain))


def _both(keras: Any, make: Callable[[], Any], train: Callable[[Any], list[Any]]) -> Any:
    """Train a plain model and a joined one; returns the joined one, which has ended the same."""
    ended = []
    for joined in (False, True):
        keras.utils.set_random_seed(7)
        model = make()
        if joined:
            share(model)
        histories = [history.history for history in train(model)]
        ended.append((model, histories))
    (plain, wanted), (model, found) = ended
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name, values in other.items():
            assert one[name] == pytest.approx(values, rel=NEAR, abs=NEAR), name
    for one, other in zip(model.variables, plain.variables, strict=True):
        if "seed_generator" not in one.path:
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=NEAR)
    for one, other in zip(model.optimizer.variables, plain.optimizer.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=NEAR, err_msg=one.path)
    assert any(np.abs(v.numpy()).max() > 1e-3 for v in model.trainable_variables)
    return model


def test_shuffled_arrays_with_some_held_out(keras: Any) -> None:
    x, y = _data()
    _both(
        keras,
        lambda: _model(keras, metrics=["mae"]),
        lambda m: [m.fit(x, y, batch_size=8, epochs=3, validation_split=0.2, verbose=0)],
    )


def test_class_weight(keras: Any) -> None:
    x, y = _data(classes=3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = {0: 0.2, 1: 3.0, 2: 1.0}
    _both(
        keras,
        lambda: _model(
            keras, outputs=3, loss=loss, metrics=["accuracy"], weighted_metrics=["accuracy"]
        ),
        lambda m: [m.fit(x, y, class_weight=weights, batch_size=7, epochs=2, verbose=0)],
    )


def test_sample_weight(keras: Any) -> None:
    x, y = _data()
    weights = np.linspace(0.0, 2.0, SAMPLES)
    held = x[:9], y[:9], weights[:9]
    _both(
        keras,
        lambda: _model(keras, weighted_metrics=["mae"]),
        lambda m: [m.fit(x, y, sample_weight=weights, validation_data=held, epochs=2, verbose=0)],
    )


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Nadam", "RMSprop"])
def test_schedules(keras: Any, kind: str) -> None:
    """The rate changes in the middle of an epoch too."""
    x, y = _data()

    def make() -> Any:
        rate = keras.optimizers.schedules.PiecewiseConstantDecay([3, 9], [0.05, 0.01, 0.002])
        return _model(keras, getattr(keras.optimizers, kind)(rate))

    _both(keras, make, lambda m: [m.fit(x, y, batch_size=8, epochs=3, verbose=0)])


@pytest.mark.parametrize(
    "options",
    [
        {"global_clipnorm": 0.125}, {"clipnorm": 0.125}, {"clipvalue": 0.0625},
        {"weight_decay": 0.1},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_what_is_done_to_gradients(keras: Any, options: dict[str, float]) -> None:
    """The norm is that of the whole gradient; it is a float32 in Keras."""
    x, y = _data()
    with pytest.MonkeyPatch.context() as patch:
        if "norm" in next(iter(options)):
            patch.setattr("test_fit_alone.NEAR", 1e-6)
        _both(
            keras,
            lambda: _model(keras, keras.optimizers.SGD(0.1, momentum=0.5, **options)),
            lambda m: [m.fit(x, y, batch_size=8, epochs=2, verbose=0)],
        )


def test_a_dataset_with_a_short_batch(keras: Any) -> None:
    x, y = _data()

    class Parts(keras.utils.PyDataset):  # type: ignore[name-defined, misc]
        def __len__(self) -> int:
            return -(-SAMPLES // 8)

        def __getitem__(self, number: int) -> Any:
            return x[8 * number : 8 * number + 8], y[8 * number : 8 * number + 8]

    _both(
        keras,
        lambda: _model(keras, metrics=["mae"]),
        lambda m: [m.fit(Parts(), epochs=3, validation_data=Parts(), verbose=0)],
    )


def test_a_loader(keras: Any) -> None:
    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, _data()))

    def train(model: Any) -> list[Any]:
        loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
        return [model.fit(loader, epochs=3, verbose=0)]

    _both(keras, lambda: _model(keras), train)


def test_a_generator(keras: Any) -> None:
    def batches() -> Iterator[Any]:
        draw = np.random.default_rng(3)
        while True:
            x = draw.normal(size=(8, 4))
            yield x, x.sum(1, keepdims=True)

    _both(
        keras,
        lambda: _model(keras),
        lambda m: [m.fit(batches(), steps_per_epoch=5, epochs=3, verbose=0)],
    )


def test_steps_of_arrays(keras: Any) -> None:
    """An epoch goes on where the last one ended."""
    x, y = _data()
    _both(
        keras,
        lambda: _model(keras),
        lambda m: [m.fit(x, y, batch_size=5, steps_per_epoch=5, epochs=4, verbose=0)],
    )


def test_stopping_early_with_the_best_weights(keras: Any) -> None:
    x, y = _data()

    def train(model: Any) -> list[Any]:
        stop = keras.callbacks.EarlyStopping(
            "val_loss", patience=1, min_delta=0.05, restore_best_weights=True
        )
        shown = model.fit(
            x, y, batch_size=8, epochs=20, validation_split=0.3, callbacks=[stop], verbose=0
        )
        assert 1 < len(shown.epoch) < 20, "it stops, and not at once"
        return [shown]

    _both(keras, lambda: _model(keras, keras.optimizers.SGD(0.1, momentum=0.9)), train)


def test_rates_that_callbacks_set(keras: Any) -> None:
    x, y = _data()

    class Warm(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.01 * (batch + 1)

    def train(model: Any) -> list[Any]:
        halve = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
        plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=1.0)
        return [
            model.fit(x, y, epochs=2, batch_size=9, callbacks=[Warm()], verbose=0),
            model.fit(x, y, epochs=2, batch_size=9, callbacks=[halve], verbose=0),
            model.fit(x, y, epochs=3, batch_size=9, callbacks=[plateau], verbose=0),
        ]

    _both(keras, lambda: _model(keras), train)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Nadam", "Ftrl"])
def test_fit_twice(keras: Any, kind: str) -> None:
    """The optimizer goes on with what it has learnt."""
    x, y = _data()
    options = {"momentum": 0.9} if kind == "SGD" else {}
    _both(
        keras,
        lambda: _model(keras, getattr(keras.optimizers, kind)(0.02, **options)),
        lambda m: [m.fit(x, y, batch_size=8, epochs=2, verbose=0) for _ in range(2)],
    )


def test_the_first_epoch_may_be_a_later_one(keras: Any) -> None:
    x, y = _data()

    def train(model: Any) -> list[Any]:
        shown = model.fit(x, y, batch_size=8, initial_epoch=2, epochs=5, verbose=0)
        assert shown.epoch == [2, 3, 4]
        return [shown]

    _both(keras, lambda: _model(keras), train)


def test_normalised_batches_and_a_frozen_layer(keras: Any) -> None:
    x, y = _data()

    def make() -> Any:
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((4,)), layers.Dense(5, trainable=False), layers.BatchNormalization(),
                layers.Activation("tanh"), layers.Dense(1),
            ]
        )  # fmt: skip
        model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
        return model

    _both(
        keras, make,
        lambda m: [m.fit(x, y, batch_size=8, epochs=3, validation_split=0.2, verbose=0)],
    )  # fmt: skip


@pytest.mark.parametrize(
    "seed",
    [
        3,
        None,
    ],
)
def test_dropout(keras: Any, seed: int | None) -> None:
    """Without a seed, Keras takes the numbers of torch's own generator."""
    x, y = _data()

    def make() -> Any:
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6), layers.Dropout(0.5, seed=seed), layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        return model

    _both(keras, make, lambda m: [m.fit(x, y, batch_size=8, epochs=3, verbose=0)])


def test_what_a_callback_sees_at_the_end_of_an_epoch(keras: Any) -> None:
    """The weights that training has come to, and the figures of the epoch."""
    x, y = _data()

    def train(model: Any) -> list[Any]:
        seen: list[Any] = []
        watch = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(model.get_weights()[0].copy())
        )
        shown = model.fit(x, y, batch_size=8, epochs=3, callbacks=[watch], verbose=0)
        shown.history["seen"] = [float(weights.sum()) for weights in seen]
        return [shown]

    _both(keras, lambda: _model(keras), train)


def test_stopping_in_the_middle_of_an_epoch(keras: Any) -> None:
    """Keras looks at ``stop_training`` after each batch."""
    x, y = _data()

    class Stop(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 2

    _both(
        keras,
        lambda: _model(keras),
        lambda m: [m.fit(x, y, batch_size=8, epochs=3, callbacks=[Stop()], verbose=0)],
    )


def test_plain_fit_goes_on_after_a_joined_one(keras: Any) -> None:
    """Keras' own optimizer has what Phalanx' has learnt."""
    x, y = _data()

    def train(model: Any) -> list[Any]:
        return [
            model.fit(x, y, batch_size=8, epochs=2, verbose=0),
            type(model).fit(model, x, y, batch_size=8, epochs=2, verbose=0),
        ]

    _both(keras, lambda: _model(keras), train)


# -- what scripts do beside, and what is refused --------------------------------------------------


def test_join_leaves_plain_python_alone(keras: Any) -> None:
    model = _model(keras)
    join(model)
    assert "fit" not in vars(model)


def test_best_weights_have_their_own_statistics(keras: Any) -> None:
    """Those of batch normalisation are restored with the weights they belong to."""
    x, y = _data()

    def make() -> Any:
        layers = keras.layers
        model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    def train(model: Any) -> list[Any]:
        stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
        held = x[:10], np.random.default_rng(1).normal(size=(10, 1))  # gets worse soon
        return [model.fit(x, y, epochs=9, validation_data=held, callbacks=[stop], verbose=0)]

    _both(keras, make, train)


def test_steps_that_do_not_divide_the_batches(keras: Any) -> None:
    x, y = _data()
    _both(
        keras,
        lambda: _model(keras),
        lambda m: [m.fit(x, y, batch_size=8, steps_per_epoch=5, epochs=2, verbose=0)],
    )


def test_a_callback_may_ask_for_the_number_of_the_step(keras: Any) -> None:
    x, y = _data()

    class WarmUp(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            done = int(self.model.optimizer.iterations)
            self.model.optimizer.learning_rate = 0.001 * (done + 1)

    _both(
        keras,
        lambda: _model(keras),
        lambda m: [m.fit(x, y, batch_size=8, epochs=2, callbacks=[WarmUp()], verbose=0)],
    )


def test_weights_that_are_loaded_as_training_begins(keras: Any) -> None:
    x, y = _data()

    class Begins(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        def on_train_begin(self, logs: Any = None) -> None:
            self.model.set_weights([np.full(w.shape, 0.1) for w in self.model.get_weights()])

    _both(
        keras,
        lambda: _model(keras),
        lambda m: [m.fit(x, y, epochs=2, callbacks=[Begins()], verbose=0)],
    )


def test_a_saved_model_has_the_state_of_its_optimizer(keras: Any, tmp_path: Any) -> None:
    x, y = _data()
    saved: list[Any] = []

    def train(model: Any) -> list[Any]:
        path = str(tmp_path / f"{len(saved)}.keras")
        each = keras.callbacks.ModelCheckpoint(path)
        found = [model.fit(x, y, epochs=2, callbacks=[each], verbose=0)]
        saved.append([v.numpy() for v in keras.saving.load_model(path).optimizer.variables])
        return found

    _both(keras, lambda: _model(keras), train)
    for one, other in zip(*saved, strict=True):
        np.testing.assert_allclose(one, other, atol=NEAR)


def test_layers_that_are_frozen_after_a_fit(keras: Any) -> None:
    """Without compiling again the optimizer still knows all variables."""
    x, y = _data()

    def train(model: Any) -> list[Any]:
        first = model.fit(x, y, epochs=1, verbose=0)
        model.layers[0].trainable = False
        return [first, model.fit(x, y, epochs=1, verbose=0)]

    _both(keras, lambda: _model(keras), train)


def test_metrics_of_several_numbers_and_logs_of_a_step(keras: Any) -> None:
    x, y = _data()

    class Tells(keras.Model):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.layer(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            super().train_step(data)
            return {"mine": keras.ops.mean(data[0])}

    def make() -> Any:
        model = Tells()
        model.compile("sgd", "mse")
        return model

    _both(keras, make, lambda m: [m.fit(x, y, epochs=2, verbose=0)])


def test_two_optimizers_are_refused(keras: Any) -> None:
    x, y = _data()

    class Two(keras.Sequential):  # type: ignore[name-defined, misc]
        def train_step(self, data: Any) -> dict[str, Any]:
            other = keras.optimizers.SGD(0.1)
            loss = keras.ops.mean(self(data[0]) ** 2)
            loss.backward()
            variables = self.trainable_variables
            other.apply([v.value.grad for v in variables], variables)
            return {"loss": loss}

    model = Two([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    share(model)
    with pytest.raises(InputError, match="was not compiled with"):
        model.fit(x, y, verbose=0)


def test_a_backup_of_keras_is_refused(keras: Any, tmp_path: Any) -> None:
    x, y = _data()
    model = _model(keras)
    share(model)
    with pytest.raises(InputError, match="BackupAndRestore"):
        model.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore(str(tmp_path))], verbose=0)
