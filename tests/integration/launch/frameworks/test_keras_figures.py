"""What ``model.fit`` of an unmodified script reports, and its steps, with the real Keras."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.launch.worker import keras_figures

pytest.importorskip("keras")
SCRIPT = """
import sys
import keras
import numpy
from beside import RATE

class Adds(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["test_accuracy"] = 0.5

x, y = numpy.zeros((10, 4), "float32"), numpy.zeros((10,), "int32")
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(RATE), loss, metrics=["accuracy"])
model.fit(x, y, 4, 2, callbacks=Adds(), validation_data=(x[:2], y[:2]))
model.fit(x[:6], y[:6], verbose=0)
print("arguments", sys.argv[1:], __name__)
"""


def figures_of(folder: Path, script: str) -> tuple[list[dict[str, float]], str]:
    (folder / "train.py").write_text(script)
    (folder / "beside.py").write_text("RATE = 0.1")
    words = [sys.executable, str(keras_figures.__file__), "train.py", "--flag", "two words"]
    ended = subprocess.run(
        words, cwd=folder, env={**os.environ, "KERAS_BACKEND": "torch"}, text=True, timeout=100,
        capture_output=True, check=True,
    )  # fmt: skip
    lines = ended.stdout.splitlines()
    marked = [line for line in lines if line.startswith("phalanx-figures ")]
    return [json.loads(line.partition(" ")[2]) for line in marked], ended.stdout


def test_every_epoch_of_every_fit_is_told(tmp_path: Path) -> None:
    found, said = figures_of(tmp_path, SCRIPT)
    assert "arguments ['--flag', 'two words'] __main__" in said
    first, *epochs = [figures for figures in found if "parameters" in figures or "epoch" in figures]
    assert (first["parameters"], first["epochs"]) == (10, 2)
    ends = [figures for figures in epochs if "epoch" in figures]
    assert [(end["epoch"], end["samples"]) for end in ends] == [(0, 10), (1, 10), (2, 6)]
    names = {"train_loss", "train_accuracy", "validation_loss", "validation_accuracy"}
    assert names | {"test_accuracy"} <= set(ends[0])
    assert all(end["seconds"] > 0 and end["rate"] == pytest.approx(0.1) for end in ends)
    assert [end["evaluate_seconds"] > 0 for end in ends] == [True, True, False]
    assert [end["checkpoint_seconds"] for end in ends] == [0.0, 0.0, 0.0]
    assert first["read_seconds"] == 0.0 and first["prepare_seconds"] > 0


def test_what_is_evaluated_saved_and_read_counts_as_such(tmp_path: Path) -> None:
    """Also in a callback, and after the last ``fit``, but never twice."""
    saves = "callbacks=keras.callbacks.ModelCheckpoint('e.weights.h5', save_weights_only=True)"
    trains = SCRIPT.replace("callbacks=Adds()", saves).replace(
        "x, y =", "given.load_data(); x, y ="
    )
    script = (
        "import sys, types\n"
        "given = sys.modules['my.datasets.given'] = types.ModuleType('given')\n"
        "given.load_data = lambda: 'read'\n"
        f"{trains}"
        "print(hasattr(keras.datasets.mnist.load_data, '__wrapped__'))\n"
        "model.evaluate(x, y, verbose=0)\nmodel.save('m.keras')\n"
    )
    found, said = figures_of(tmp_path, script)
    first, last = found[0], found[-1]
    assert "True" in said.splitlines()
    assert first["read_seconds"] > 0
    assert [f["checkpoint_seconds"] > 0 for f in found if "epoch" in f] == [True, True, False]
    assert "epoch" not in last and last["evaluate_seconds"] > 0 and last["checkpoint_seconds"] > 0


def test_a_script_that_tells_its_own_figures_is_left_alone(tmp_path: Path) -> None:
    found, _ = figures_of(tmp_path, SCRIPT + "print('phalanx-figures {\"epoch\": 7}')")
    assert found == [{"epoch": 7}]


def test_a_model_that_its_first_batch_builds(tmp_path: Path) -> None:
    found, _ = figures_of(tmp_path, SCRIPT.replace("keras.layers.Input((4,)), ", ""))
    assert [f["parameters"] for f in found if "parameters" in f] == [10, 10]


ENDLESS = (
    SCRIPT.replace("x, y, 4, 2,", "x, y, 2, 1000,") + "\nopen('end.txt', 'w').write('the end')"
)


@pytest.mark.runs
def test_measured_steps_are_written_down_and_the_script_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    (tmp_path / "beside.py").write_text("RATE = 0.1")
    given = {"PHALANX_MEASURE": "0.5", "PHALANX_RUN": str(tmp_path), "KERAS_BACKEND": "torch"}
    words = [sys.executable, str(keras_figures.__file__), "train.py"]
    ended = subprocess.run(words, cwd=tmp_path, env={**given, "PATH": ""}, timeout=100, check=False)
    assert ended.returncode == 0
    assert not (tmp_path / "end.txt").exists()
    found = json.loads((tmp_path / "files" / keras_figures.MEASURED).read_text())
    assert (found["steps"], found["epochs"], found["samples"]) == (5, 1000, 2.0)
    assert found["step"] > 0 and found["start"] > 0 and found["counted"] >= 3
