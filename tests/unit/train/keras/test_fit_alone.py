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

NEAR, NEAR_NORM = 1e-9, 1e-6
SAMPLES = 50
X = np.random.default_rng(0).normal(size=(SAMPLES, 4))
Y = np.tanh(X.sum(1, keepdims=True))
WEIGHTS = np.linspace(0.0, 2.0, SAMPLES)
CLASSES = np.random.default_rng(0).integers(0, 3, SAMPLES)
Fits = list[dict[str, Any]]


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


def _both(
    keras: Any,
    make: Callable[[], Any],
    train: Callable[[Any], list[Any]] | None = None,
    near: float = NEAR,
    **fit: Any,
) -> None:
    """A plain model and a joined one end the same; trained by ``train``, or one ``fit`` on X, Y."""
    train = train or (
        lambda m: [m.fit(X, Y, **{"batch_size": 8, "epochs": 3, "verbose": 0, **fit})]
    )
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
            assert one[name] == pytest.approx(values, rel=near, abs=near), name
    for one, other in zip(model.variables, plain.variables, strict=True):
        if "seed_generator" not in one.path:
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=near)
    for one, other in zip(model.optimizer.variables, plain.optimizer.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=near, err_msg=one.path)
    assert any(np.abs(v.numpy()).max() > 1e-3 for v in model.trainable_variables)


# -- data and models ------------------------------------------------------------------------------

FITS: dict[str, dict[str, Any]] = {
    "some held out": {"validation_split": 0.2},
    "in order": {"shuffle": False},
    "default batch": {"batch_size": None},
    "one batch": {"batch_size": 64},
    "epochs of some steps go on where the last one ended": {
        "batch_size": 5, "steps_per_epoch": 5, "epochs": 4,
    },
    "steps that do not divide the batches": {"steps_per_epoch": 5, "epochs": 2},
    "a later first epoch": {"initial_epoch": 2, "epochs": 5},
    "weights of samples": {
        "sample_weight": WEIGHTS, "validation_data": (X[:9], Y[:9], WEIGHTS[:9]),
    },
}  # fmt: skip


@pytest.mark.parametrize("fit", FITS.values(), ids=list(FITS))
def test_arrays(keras: Any, fit: dict[str, Any]) -> None:
    _both(keras, lambda: _model(keras, metrics=["mae"], weighted_metrics=["mae"]), **fit)


def test_weights_of_classes(keras: Any) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    words = {"loss": loss, "metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
    weights = {0: 0.2, 1: 3.0, 2: 1.0}
    _both(
        keras,
        lambda: _model(keras, outputs=3, **words),
        lambda m: [m.fit(X, CLASSES, class_weight=weights, batch_size=7, epochs=2, verbose=0)],
    )


def _dataset(keras: Any) -> Any:
    """Its last batch is a short one."""

    class Parts(keras.utils.PyDataset):  # type: ignore[name-defined, misc]
        def __len__(self) -> int:
            return -(-SAMPLES // 8)

        def __getitem__(self, number: int) -> Any:
            return X[8 * number : 8 * number + 8], Y[8 * number : 8 * number + 8]

    return Parts()


def _loader(keras: Any) -> Any:
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)


def _generator(keras: Any) -> Iterator[Any]:
    draw = np.random.default_rng(3)
    while True:
        x = draw.normal(size=(8, 4))
        yield x, x.sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("make", "fit"),
    [
        (_dataset, {}),
        (_dataset, {"shuffle": False}),
        (_loader, {}),
        (_loader, {"steps_per_epoch": 7}),
        (_generator, {"steps_per_epoch": 5}),
    ],
)
def test_streams(keras: Any, make: Callable[[Any], Any], fit: dict[str, Any]) -> None:
    def train(model: Any) -> list[Any]:
        return [model.fit(make(keras), epochs=3, validation_data=_dataset(keras), verbose=0, **fit)]

    _both(keras, lambda: _model(keras, metrics=["mae"]), train)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Nadam", "RMSprop"])
def test_schedules(keras: Any, kind: str) -> None:
    """The rate changes in the middle of an epoch too."""

    def make() -> Any:
        rate = keras.optimizers.schedules.PiecewiseConstantDecay([3, 9], [0.05, 0.01, 0.002])
        return _model(keras, getattr(keras.optimizers, kind)(rate))

    _both(keras, make)


@pytest.mark.parametrize(
    "options",
    [{"global_clipnorm": 0.125}, {"clipnorm": 0.125}, {"clipvalue": 0.0625}, {"weight_decay": 0.1}],
    ids=lambda options: next(iter(options)),
)
def test_what_is_done_to_gradients(keras: Any, options: dict[str, float]) -> None:
    """The norm is that of the whole gradient; it is a float32 in Keras."""
    near = NEAR_NORM if "norm" in next(iter(options)) else NEAR
    _both(
        keras,
        lambda: _model(keras, keras.optimizers.SGD(0.1, momentum=0.5, **options)),
        near=near,
    )


def test_normalised_batches_and_a_frozen_layer(keras: Any) -> None:
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

    _both(keras, make, validation_split=0.2)


@pytest.mark.parametrize("seed", [3, None])
def test_dropout(keras: Any, seed: int | None) -> None:
    """Without a seed, Keras takes the numbers of torch's own generator."""

    def make() -> Any:
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6), layers.Dropout(0.5, seed=seed), layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        return model

    _both(keras, make)


# -- callbacks ------------------------------------------------------------------------------------


def test_stopping_early_with_the_best_weights(keras: Any) -> None:
    def train(model: Any) -> list[Any]:
        stop = keras.callbacks.EarlyStopping(
            "val_loss", patience=1, min_delta=0.05, restore_best_weights=True
        )
        shown = model.fit(
            X, Y, batch_size=8, epochs=20, validation_split=0.3, callbacks=[stop], verbose=0
        )
        assert 1 < len(shown.epoch) < 20, "it stops, and not at once"
        return [shown]

    _both(keras, lambda: _model(keras, keras.optimizers.SGD(0.1, momentum=0.9)), train)


def test_best_weights_have_their_own_statistics(keras: Any) -> None:
    """Those of batch normalisation are restored with the weights they belong to."""

    def make() -> Any:
        layers = keras.layers
        model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    def train(model: Any) -> list[Any]:
        stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
        held = X[:10], np.random.default_rng(1).normal(size=(10, 1))  # gets worse soon
        return [model.fit(X, Y, epochs=9, validation_data=held, callbacks=[stop], verbose=0)]

    _both(keras, make, train)


def _hook(keras: Any, name: str, act: Callable[..., None]) -> Any:
    """A callback of the script's own: ``act(callback, batch or epoch)`` when ``name`` is due."""
    body = {name: lambda self, at=None, logs=None: act(self, at)}
    return type("Own", (keras.callbacks.Callback,), body)()


def _rate(callback: Any, rate: float) -> None:
    callback.model.optimizer.learning_rate = rate


def _stop(callback: Any, batch: int) -> None:
    callback.model.stop_training = batch == 2


def _load(callback: Any, _: None) -> None:
    model = callback.model
    model.set_weights([np.full(w.shape, 0.1) for w in model.get_weights()])


CALLBACKS: dict[str, Callable[[Any], Any]] = {
    "a rate for each batch": lambda keras: _hook(
        keras, "on_train_batch_begin", lambda own, batch: _rate(own, 0.01 * (batch + 1))
    ),
    "the number of the step": lambda keras: _hook(
        keras,
        "on_train_batch_begin",
        lambda own, _: _rate(own, 0.001 * (int(own.model.optimizer.iterations) + 1)),
    ),
    "a stop in an epoch": lambda keras: _hook(keras, "on_train_batch_end", _stop),
    "other weights at the beginning": lambda keras: _hook(keras, "on_train_begin", _load),
    "a schedule of epochs": lambda keras: keras.callbacks.LearningRateScheduler(
        lambda epoch: 0.1 / (epoch + 1)
    ),
    "a plateau": lambda keras: keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=1.0),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_what_callbacks_change(keras: Any, name: str) -> None:
    def train(model: Any) -> list[Any]:
        callbacks = [CALLBACKS[name](keras)]
        return [model.fit(X, Y, batch_size=9, epochs=3, callbacks=callbacks, verbose=0)]

    _both(keras, lambda: _model(keras), train)


def test_what_a_callback_sees_and_saves_at_the_end_of_an_epoch(keras: Any, tmp_path: Any) -> None:
    """The weights that training has come to, and the state of the optimizer."""
    saved: list[Any] = []

    def train(model: Any) -> list[Any]:
        seen: list[float] = []
        path = str(tmp_path / f"{len(saved)}.keras")
        watch = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(float(model.get_weights()[0].sum()))
        )
        callbacks = [watch, keras.callbacks.ModelCheckpoint(path)]
        shown = model.fit(X, Y, batch_size=8, epochs=3, callbacks=callbacks, verbose=0)
        shown.history["seen"] = seen
        saved.append([v.numpy() for v in keras.saving.load_model(path).optimizer.variables])
        return [shown]

    _both(keras, lambda: _model(keras), train)
    for one, other in zip(*saved, strict=True):
        np.testing.assert_allclose(one, other, atol=NEAR)


# -- one fit after another ------------------------------------------------------------------------


def _again(model: Any) -> list[Any]:
    return [model.fit(X, Y, batch_size=8, epochs=2, verbose=0) for _ in range(2)]


def _plain_then(model: Any) -> list[Any]:
    """Keras' own optimizer has what Phalanx' has learnt."""
    first = model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    return [first, type(model).fit(model, X, Y, batch_size=8, epochs=2, verbose=0)]


def _frozen_then(model: Any) -> list[Any]:
    """Without compiling again the optimizer still knows all variables."""
    first = model.fit(X, Y, epochs=1, verbose=0)
    model.layers[0].trainable = False
    return [first, model.fit(X, Y, epochs=1, verbose=0)]


@pytest.mark.parametrize(
    ("train", "kind"),
    [
        *((_again, kind) for kind in ("SGD", "Adam", "Nadam", "Ftrl")),
        (_plain_then, "Adam"),
        (_frozen_then, "Adam"),
    ],
)
def test_fit_twice(keras: Any, train: Callable[[Any], list[Any]], kind: str) -> None:
    """The optimizer goes on with what it has learnt."""
    options = {"momentum": 0.9} if kind == "SGD" else {}
    _both(keras, lambda: _model(keras, getattr(keras.optimizers, kind)(0.02, **options)), train)


# -- what scripts do beside, and what is refused --------------------------------------------------


def test_join_leaves_plain_python_alone(keras: Any) -> None:
    model = _model(keras)
    join(model)
    assert "fit" not in vars(model)


def test_logs_of_a_step_of_the_scripts_own(keras: Any) -> None:
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

    _both(keras, make)


def test_two_optimizers_are_refused(keras: Any) -> None:
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
        model.fit(X, Y, verbose=0)


def test_a_backup_of_keras_is_refused(keras: Any, tmp_path: Any) -> None:
    model = _model(keras)
    share(model)
    with pytest.raises(InputError, match="BackupAndRestore"):
        model.fit(X, Y, callbacks=[keras.callbacks.BackupAndRestore(str(tmp_path))], verbose=0)
