"""The process that trains, as a task starts it, without Spark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from safetensors.torch import load

from phalanx.core.run_folder.run_key import RunKey
from phalanx.spark import messages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FOLDER = Path(__file__).parent


def _source(**options: Any) -> messages.ModelSource:
    chosen: dict[str, Any] = {
        "model": "spark_models:classifier", "model_options": {}, "optimizer": "adam",
        "optimizer_options": {"lr": 0.05}, "loss": "cross_entropy", "features": "features",
        "label": "label",
    }  # fmt: skip
    return messages.ModelSource(**{**chosen, **options})


def _rows(folder: Path, number: int, label: str = "int64") -> list[int]:
    draws = np.random.default_rng(number).normal(size=(100, 4)).astype(np.float32)
    labels = ((draws[:, 0] > 0).astype(int) + (draws[:, 1] > 0)).astype(label)
    batch = pa.record_batch({"features": pa.array(list(draws)), "label": labels})
    with pa.ipc.new_file(str(folder / messages.ROWS), batch.schema) as file:
        file.write_batch(batch)
    return [100]


def _train(folder: Path, workers: int, source: messages.ModelSource) -> list[Path]:
    """The folders that the workers leave."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    folders = [folder / str(rank) for rank in range(workers)]
    for each in folders:
        each.mkdir()
    tasks = [
        messages.TaskReport(address="127.0.0.1", port=port, rows=_rows(each, n), bytes=2400)
        for n, each in enumerate(folders)
    ]
    training = messages.TrainingRequest(
        source=source, strategy="allreduce", workers=workers, batch=20, epochs=6, seed=1,
        tls=False, store=None,
    )  # fmt: skip
    key, variables = RunKey.new().text(), {**os.environ, "PYTHONPATH": str(FOLDER)}
    started = []
    for rank, each in enumerate(folders):
        request = messages.WorkerRequest(
            training=training, rank=rank, folder=str(each), tasks=tasks, key=key, parent=os.getpid()
        )
        words = [sys.executable, "-P", "-m", "phalanx.spark.worker"]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, env=variables)
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(request))
        child.stdin.close()
        started.append(child)
    try:
        for child in started:
            child.wait(100)
    finally:
        for child in started:
            child.kill()
            child.wait()
    return folders


def _figures(folder: Path) -> messages.WorkerFigures:
    failure = folder / messages.FAILURE
    assert not failure.exists(), failure.read_text()
    return msgspec.json.decode(
        (folder / messages.FIGURES).read_bytes(), type=messages.WorkerFigures
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_of_its_own(tmp_path: Path, workers: int) -> None:
    folders = _train(tmp_path, workers, _source())
    found = [_figures(folder) for folder in folders]
    assert [one.rows for one in found] == [100] * workers
    assert all(one.loss is not None and one.loss < 0.8 and one.width == 3 for one in found)
    assert load((folders[0] / messages.WEIGHTS).read_bytes())["0.weight"].shape == (8, 4)
    assert not (folders[-1] / messages.WEIGHTS).exists() or workers == 1


def test_a_failure_of_one_is_told_by_one(tmp_path: Path) -> None:
    folders = _train(tmp_path, 2, _source(model="spark_models:Fails"))
    failures = [
        msgspec.json.decode((each / messages.FAILURE).read_bytes(), type=messages.WorkerFailure)
        for each in folders
    ]
    assert [one.kind for one in failures] == ["peer", "script"]
    assert failures[1].text.endswith("ValueError: this model fails on purpose")
    assert "phalanx/launch" not in failures[1].text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "nowhere:model"}, "there is no module 'nowhere' here"),
        ({"model": "spark_models:nothing"}, "spark_models has no 'nothing'"),
        ({"optimizer_options": {"rate": 1}}, "the optimizer does not take these options"),
        ({"optimizer_options": {"lr": "x"}}, "the optimizer does not take these options"),
        ({"model_options": {"hiden": 1}}, "the model does not take these options"),
    ],
)
def test_what_a_worker_refuses(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    (folder,) = _train(tmp_path, 1, _source(**options))
    assert words in (folder / messages.FAILURE).read_text()
