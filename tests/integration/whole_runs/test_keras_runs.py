"""Plain Keras scripts, not a line of them changed, on several workers."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import last_json, phalanx, python, succeeds

NEAR = 1e-5
LIMIT = 240.0
BACKENDS = ["torch", "tensorflow", "jax"]
EXACT = ["allreduce", "bsp"]
OTHERS = [
    "async", "ssp:bound=3", "dssp", "localsgd:every=4", "diloco:every=4", "switch:at=0.5",
    "allreduce+int8", "groups:size=1",
]  # fmt: skip
LOCAL = "localsgd:every=4"
Ended = dict[str, Any]

BEGIN = """
import json
import numpy as np
import keras

keras.utils.set_random_seed(0)
draw = np.random.default_rng(0)
x, noise = (draw.normal(size=({samples} + 25, n)).astype("float32") for n in (4, 1))
y = np.tanh(x.sum(1, keepdims=True)) + {noise} * noise
model = keras.Sequential([
    keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1),
])
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
"""
ARRAYS = """
held = x[-25:], y[-25:]
shown = model.fit(x[:-25], y[:-25], batch_size=16, epochs=3, validation_data=held, verbose=2)
"""
BATCHES = """
class Parts(keras.utils.PyDataset):
    def __len__(self):
        return 7

    def __getitem__(self, i):
        return x[:-25][16 * i : 16 * i + 16], y[:-25][16 * i : 16 * i + 16]

held = x[-25:], y[-25:]
shown = model.fit(Parts(), epochs=3, shuffle=False, validation_data=held, verbose=2)
"""
STOPPING = """
callbacks = [
    keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5),
    keras.callbacks.ModelCheckpoint("best.keras", "val_loss", save_best_only=True),
]
shown = model.fit(
    x, y, batch_size=16, epochs=40, validation_split=0.2, callbacks=callbacks, verbose=2
)
"""
END = """
found = {
    "weights": [w.tolist() for w in model.get_weights()],
    "history": {name: [float(v) for v in values] for name, values in shown.history.items()},
    "steps": int(model.optimizer.iterations),
}
with open("ended.json", "w") as file:
    json.dump(found, file)
"""
JOINED = """
import os
import phalanx.keras

y = (y > 0).astype("int32")
model = keras.Sequential([
    keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(8, "relu"),
    keras.layers.Dropout(0.2), keras.layers.Dense(2),
])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
phalanx.keras.join(model)
callbacks = [
    keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5),
    keras.callbacks.ModelCheckpoint("best.keras", "val_loss", save_best_only=True),
]
held = x[-40:], y[-40:]
shown = model.fit(
    x[:-40], y[:-40], batch_size=16, epochs=30, validation_data=held, callbacks=callbacks,
    class_weight={0: 1.0, 1: 2.0}, verbose=2,
)
found = {
    "weights": [w.tolist() for w in model.get_weights()],
    "history": {name: [float(v) for v in values] for name, values in shown.history.items()},
    "held": model.evaluate(*held, verbose=0),
}
with open(f"ended-{os.environ['PHALANX_RANK']}.json", "w") as file:
    json.dump(found, file)
"""
WRITES = """
class Pull(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        kernel = self.model.layers[0].kernel
        kernel.assign(kernel * 0.5)
        self.seen = self.model.layers[0].name

shown = model.fit(x, y, batch_size=16, epochs=1, callbacks=[Pull()], verbose=2)
"""
STOPPED = """
import os
import signal

rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.9)
model.compile(keras.optimizers.Nadam(rate), "mse", metrics=["mae"])

class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 10 and "PHALANX_RANK" in os.environ:
            if not os.path.exists("asked"):
                open("asked", "w").close()
                os.kill(os.getpid(), signal.SIGTERM)

shown = model.fit(x, y, batch_size=16, epochs=3, callbacks=[Stop()], verbose=2)
"""
LOADS = """
import json
import keras

model = keras.saving.load_model("best.keras")
with open("loaded.json", "w") as file:
    json.dump([w.tolist() for w in model.get_weights()], file)
"""


def _script(middle: str, noise: float = 0.0, samples: int = 100) -> str:
    return BEGIN.format(noise=noise, samples=samples) + middle + END


def _variables(backend: str) -> dict[str, str]:
    if importlib.util.find_spec("keras") is None or importlib.util.find_spec(backend) is None:
        pytest.skip(f"Keras with {backend} is not installed")
    return {
        "KERAS_BACKEND": backend, "KERAS_TORCH_DEVICE": "cpu", "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip


def _python(name: str, folder: Path, backend: str) -> None:
    """Plain Python, without Phalanx."""
    environment = {**os.environ, **_variables(backend)}
    ended = python(name, cwd=folder, env=environment)
    assert ended.returncode == 0, ended.stderr


def _read(folder: Path) -> Ended:
    found: Ended = json.loads((folder / "ended.json").read_text())
    return found


def _plain(folder: Path, script: str, backend: str) -> Ended:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    _python("train.py", folder, backend)
    return _read(folder)


def _run(folder: Path, script: str, backend: str, workers: int, strategy: str, *more: str) -> Ended:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    succeeds(
        "run", "train.py", "--workers", str(workers), "--strategy", strategy, *more,
        cwd=folder, limit=LIMIT, **_variables(backend),
    )  # fmt: skip
    return _read(folder)


def _assert_same(found: Ended, wanted: Ended) -> None:
    for one, other in zip(found["weights"], wanted["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=NEAR)
    assert found["history"].keys() == wanted["history"].keys()
    for name, values in wanted["history"].items():
        assert found["history"][name] == pytest.approx(values, abs=NEAR), name
    assert found["steps"] == wanted["steps"]


def _assert_learnt(found: Ended, wanted: Ended) -> None:
    """Not the same numbers; but as many of them, and the loss falls."""
    _assert_ended(found, wanted)
    losses = found["history"]["loss"]
    assert losses[-1] < losses[0] < 1.0


def _assert_ended(found: Ended, wanted: Ended) -> None:
    for name, values in wanted["history"].items():
        assert len(found["history"][name]) == len(values), name
        assert np.isfinite(found["history"][name]).all(), name
    assert all(np.isfinite(weights).all() for weights in found["weights"])


def _explained(folder: Path, script: str, *words: str) -> dict[str, Any]:
    folder.mkdir()
    (folder / "train.py").write_text(script)
    ended = succeeds(
        "run", "--explain", *words, "train.py", "--json", cwd=folder, limit=LIMIT,
        **_variables("torch"),
    )  # fmt: skip
    assert not (folder / "ended.json").exists() and not (folder / "runs").exists()
    return dict(last_json(ended.stdout))


@pytest.mark.timeout(300)
def test_what_explain_finds_and_what_several_workers_would_refuse(tmp_path: Path) -> None:
    found = _explained(tmp_path / "stops", _script(STOPPING, noise=0.1), "--framework", "keras")
    assert found["models"][0]["kind"] == "Sequential" and found["models"][0]["parameters"] == 49
    assert (found["optimizers"][0]["kind"], round(found["optimizers"][0]["rate"], 6)) == (
        "SGD",
        0.05,
    )
    data = found["data"]
    assert (data["samples"], data["batch"], data["batches"], data["shuffled"]) == (100, 16, 7, True)
    assert (found["epochs"], found["loss"], found["refused"]) == (40, "mean", [])
    assert found["schedulers"] == ["ReduceLROnPlateau"]
    assert "each worker evaluates a part" in found["evaluation"]
    refused = _script(ARRAYS).replace('"mse"', 'keras.losses.MeanSquaredError("sum")')
    (said,) = _explained(tmp_path / "sum", refused)["refused"]
    assert "the loss is a sum over the samples" in said


@pytest.mark.timeout(600)
def test_a_plain_script_on_two_workers(tmp_path: Path) -> None:
    """In lockstep it ends as plain Python does; freely running it learns."""
    script = _script(ARRAYS)
    wanted = _plain(tmp_path / "plain", script, "torch")
    _assert_same(_run(tmp_path / "exact", script, "torch", 2, "allreduce"), wanted)
    _assert_learnt(_run(tmp_path / "free", script, "torch", 2, "async"), wanted)


@pytest.fixture(scope="module", params=BACKENDS)
def plain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Ended]:
    """A backend, and what plain Python ends with."""
    folder = tmp_path_factory.mktemp("plain")
    return request.param, _plain(folder, _script(ARRAYS), request.param)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", [*EXACT, *OTHERS])
def test_every_strategy_on_every_backend(
    tmp_path: Path, plain: tuple[str, Ended], strategy: str
) -> None:
    backend, wanted = plain
    found = _run(tmp_path, _script(ARRAYS), backend, 3, strategy)
    if strategy.startswith("diloco"):  # its outer momentum overshoots in so few rounds
        _assert_ended(found, wanted)
    else:
        (_assert_same if strategy in EXACT else _assert_learnt)(found, wanted)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", ["allreduce", "async"])
def test_all_workers_end_with_the_best_weights(tmp_path: Path, backend: str, strategy: str) -> None:
    """With batch normalisation and dropout, stopped by the first worker's callback."""
    script = BEGIN.format(noise=1.0, samples=200) + JOINED
    (tmp_path / "train.py").write_text(script)
    succeeds(
        "run", "train.py", "--workers", "3", "--strategy", strategy,
        cwd=tmp_path, limit=LIMIT, **_variables(backend),
    )  # fmt: skip
    first, *others = (json.loads((tmp_path / f"ended-{r}.json").read_text()) for r in range(3))
    for other in others:
        assert other["history"] == first["history"]
        for one, wanted in zip(other["weights"], first["weights"], strict=True):
            np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-7)
    losses = first["history"]["val_loss"]
    assert len(losses) < 30
    assert first["held"][0] == pytest.approx(min(losses), rel=1e-5)
    (tmp_path / "load.py").write_text(LOADS)
    _python("load.py", tmp_path, backend)
    loaded = json.loads((tmp_path / "loaded.json").read_text())
    for one, wanted in zip(loaded, first["weights"], strict=True):
        np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", ["allreduce", "async", LOCAL])
def test_batches_of_a_stream(tmp_path: Path, backend: str, strategy: str) -> None:
    script = _script(BATCHES)
    wanted = _plain(tmp_path / "plain", script, backend)
    found = _run(tmp_path / "shared", script, backend, 2, strategy)
    (_assert_same if strategy in EXACT else _assert_learnt)(found, wanted)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("data", [ARRAYS, BATCHES], ids=["arrays", "batches"])
def test_a_last_batch_of_fewer_samples_than_workers(tmp_path: Path, data: str) -> None:
    """The one sample of it is one worker's, and counts once."""
    script = _script(data, samples=97)
    wanted = _plain(tmp_path / "plain", script, "torch")
    _assert_same(_run(tmp_path / "shared", script, "torch", 2, "allreduce"), wanted)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_callbacks_of_keras(tmp_path: Path, backend: str) -> None:
    """Two workers stop where plain Python does, with the same best weights, saved once."""
    script = _script(STOPPING, noise=0.3)
    wanted = _plain(tmp_path / "plain", script, backend)
    epochs = len(wanted["history"]["loss"])
    assert 4 < epochs < 40, "it stops early, and not at once"
    assert len(set(wanted["history"]["learning_rate"])) > 1
    folder = tmp_path / "shared"
    found = _run(folder, script, backend, 2, "allreduce")
    assert len(found["history"]["loss"]) == epochs
    _assert_same(found, wanted)
    assert [path.name for path in folder.rglob("*.keras")] == ["best.keras"]
    (folder / "load.py").write_text(LOADS)
    _python("load.py", folder, backend)
    saved = json.loads((folder / "loaded.json").read_text())
    for one, other in zip(saved, found["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_worker_goes_on_where_it_was_stopped_and_skips_bad_steps(
    tmp_path: Path, backend: str
) -> None:
    """It is stopped inside an epoch, with a rate that falls in every step."""
    script = _script(STOPPED)
    wanted = _plain(tmp_path / "plain", script, backend)
    folder, variables = tmp_path / "alone", _variables(backend)
    folder.mkdir()
    (folder / "train.py").write_text(script)
    words = ("run", "train.py", "--workers", "1", "--name", "first")
    assert phalanx(*words, cwd=folder, limit=LIMIT, **variables).returncode != 0
    assert not (folder / "ended.json").exists()
    succeeds("resume", "first", cwd=folder, limit=LIMIT, **variables)
    found = _read(folder)
    for one, other in zip(found["weights"], wanted["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=NEAR)
    assert found["steps"] == wanted["steps"]
    bad = _run(tmp_path / "bad", script.replace("Stop()", "").replace(
        "shown =", "x[7] = np.nan\nshown ="), backend, 1, "allreduce")  # fmt: skip
    assert all(np.isfinite(weights).all() for weights in bad["weights"])
    assert bad["steps"] == wanted["steps"] and bad["weights"] != wanted["weights"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_callback_that_writes_between_batches_is_refused(tmp_path: Path, backend: str) -> None:
    """Also one that looks at the model again after it has written."""
    (tmp_path / "train.py").write_text(_script(WRITES))
    ended = phalanx(
        "run", "train.py", "--workers", "2", cwd=tmp_path, limit=LIMIT, **_variables(backend)
    )
    assert ended.returncode != 0
    assert "between two batches" in ended.stderr
