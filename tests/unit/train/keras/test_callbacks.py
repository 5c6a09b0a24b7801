"""Which callbacks run on which worker."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.train.keras.callbacks import acts_inside, callbacks_of, may_save


@pytest.fixture
def model(keras: Any) -> Any:
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def _chosen(model: Any, given: Any, *, first: bool, verbose: Any = 0) -> list[Any]:
    """Those that run, beside History."""
    found = callbacks_of(
        model, given, first=first, launched=True, verbose=verbose, epochs=3, steps=5
    )
    return [each for each in found.callbacks if type(each).__name__ != "History"]


def _own(keras: Any, *hooks: str) -> Any:
    """A callback of the script's own with these methods."""
    body: dict[str, Any] = {hook: lambda self, *args, **kwargs: None for hook in hooks}
    return type("Own", (keras.callbacks.Callback,), {"__module__": "__main__", **body})()


INSIDE = ["on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"]
OUTSIDE = [
    "on_epoch_begin", "on_epoch_end", "on_train_begin", "on_train_end", "on_test_batch_end",
]  # fmt: skip


@pytest.mark.parametrize("hook", [*INSIDE, *OUTSIDE])
def test_own_callbacks(keras: Any, model: Any, hook: str) -> None:
    """They run everywhere: they may change what a loss or a layer reads."""
    callback = _own(keras, hook)
    for first in (True, False):
        assert _chosen(model, [callback], first=first) == [callback]
    assert acts_inside(callback) == (hook in INSIDE)


def test_a_class_of_the_script_with_hooks_of_keras(keras: Any, model: Any) -> None:
    """A checkpoint of another name does not save once for each worker."""
    kind = type("Saves", (keras.callbacks.ModelCheckpoint,), {"__module__": "__main__"})
    saves = kind("best.keras", save_freq=2)
    assert _chosen(model, [saves], first=True) == [saves]
    assert _chosen(model, [saves], first=False) == []
    assert may_save(saves)
    assert not may_save(keras.callbacks.CSVLogger("log.csv"))


def test_those_of_keras_run_once(keras: Any, model: Any) -> None:
    known = keras.callbacks
    given = [
        known.ModelCheckpoint("best.keras", save_freq=2), known.EarlyStopping("loss"),
        known.ReduceLROnPlateau("loss"), known.TerminateOnNaN(), known.CSVLogger("log.csv"),
        known.LearningRateScheduler(lambda epoch: 0.1),
    ]  # fmt: skip
    assert _chosen(model, given, first=True) == given
    # Those that write the rate into the logs, which the script's own callbacks may read.
    assert _chosen(model, given, first=False) == [given[2], given[5]]


def test_a_function_of_the_script_for_each_batch(keras: Any, model: Any) -> None:
    """What it does is the script's own: a rate for each batch, on every worker."""
    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: None)
    assert _chosen(model, [callback], first=False) == [callback]


def test_in_the_order_given(keras: Any, model: Any) -> None:
    given = [_own(keras, hook) for hook in ("on_batch_end", "on_epoch_end", "on_batch_begin")]
    given.insert(1, keras.callbacks.EarlyStopping("loss"))
    assert _chosen(model, given, first=True) == given
    assert _chosen(model, given, first=False) == [given[0], given[2], given[3]]


def test_every_shape_that_fit_takes(keras: Any, model: Any) -> None:
    one = _own(keras, "on_batch_end")
    for given in (one, [one], (one,), keras.callbacks.CallbackList([one])):
        assert _chosen(model, given, first=False) == [one]
    assert _chosen(model, None, first=True) == []


def test_progress_is_shown_once(model: Any) -> None:
    """A line an epoch where the output is a file; nothing on other workers."""
    (bar,) = _chosen(model, None, first=True, verbose="auto")
    assert type(bar).__name__ == "ProgbarLogger" and bar.verbose == 2
    assert _chosen(model, None, first=False, verbose="auto") == []
    assert _chosen(model, None, first=False, verbose=1) == []


def test_a_hook_may_be_inherited(keras: Any, model: Any) -> None:
    parent = type(_own(keras, "on_train_batch_end"))
    child = type("Child", (parent,), {"__module__": "__main__"})()
    assert _chosen(model, [child], first=False) == [child]
