"""Steps of ``model.fit`` that are measured in the process of the script, which then ends."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from phalanx.launch.worker import keras_figures

pytestmark = [
    pytest.mark.runs,
    pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed"),
]
SCRIPT = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np
x, y = np.random.rand(320, 16).astype("float32"), np.random.randint(0, 3, 320)
model = keras.Sequential([keras.layers.Dense(32), keras.layers.Dense(3, activation="softmax")])
model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
model.fit(x, y, batch_size=32, epochs=1000, verbose=0)
open("end.txt", "w").write("the end")
"""


def test_they_are_written_down_and_the_script_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(keras_figures.__file__), "train.py"],
        cwd=tmp_path,
        env={"PHALANX_MEASURE": "0.5", "PHALANX_RUN": str(tmp_path), "PATH": ""},
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0
    assert not (tmp_path / "end.txt").exists()
    found = json.loads((tmp_path / "files" / keras_figures.MEASURED).read_text())
    assert (found["steps"], found["epochs"], found["samples"]) == (10, 1000, 32.0)
    assert found["step"] > 0
    assert found["start"] > 0
    assert found["counted"] >= 3
