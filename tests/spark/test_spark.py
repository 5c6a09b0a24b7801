"""From a DataFrame to a fitted model and back, on a real cluster of Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from ranks import as_ranks
from safetensors.torch import load
from torch import nn

import phalanx
from phalanx.core.errors import InputError, ScriptError
from phalanx.core.settings import RunSettings
from phalanx.data.blocks.block import Block, Columns
from phalanx.data.blocks.block_data import BlockData

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]
MODELS = Path(__file__).parent / "spark_models.py"
ROWS = 600


def made_rows(rows: int) -> list[tuple[Any, ...]]:
    draws = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    labels = (draws[:, 0] > 0).astype(int) + (draws[:, 1] > 0).astype(int)
    return [
        (number, *map(float, one), int(label))
        for number, (one, label) in enumerate(zip(draws, labels, strict=True))
    ]


def frame_of(spark: Any, rows: int = ROWS) -> Any:
    schema = "number long, a float, b float, c float, d float, label int"
    return spark.createDataFrame(made_rows(rows), schema)


def features(spark: Any, kind: str = "float") -> Any:
    made = f"cast(array(a, b, c, d) as array<{kind}>) as features"
    return frame_of(spark).selectExpr("number", made, "label")


def estimator(**options: Any) -> Any:
    from phalanx.spark import Estimator

    chosen = {
        "model": "spark_models:classifier",
        "optimizer": "spark_models:momentum",
        "optimizer_options": {"lr": 0.1},
        "workers": 2,
        "batch": 60,
        "epochs": 3,
        **options,
    }
    return Estimator(chosen.pop("model"), **chosen)


class _Partitions:
    """What the tasks had, in memory."""

    def __init__(self, parts: list[list[tuple[Any, Any]]]) -> None:
        self._parts = [batch for home in parts for batch in home]
        homes = [home for home, batches in enumerate(parts) for _ in batches]
        self.blocks = [
            Block("made", number, len(label), home)
            for number, ((_, label), home) in enumerate(zip(self._parts, homes, strict=True))
        ]

    def read(self, block: Block) -> Columns:
        x, y = self._parts[block.number]
        return {"features": x, "label": y}


def _as_partitioned(frame: Any) -> list[list[tuple[Any, Any]]]:
    def tell(batches: Any) -> Any:
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            x, y = batch.column("features").to_pylist(), batch.column("label").to_pylist()
            home = TaskContext.get().partitionId()
            yield pa.RecordBatch.from_pylist([{"home": home, "number": number, "x": x, "y": y}])

    schema = "home long, number long, x array<array<double>>, y array<long>"
    found: list[list[tuple[Any, Any]]] = [[], []]
    rows = frame.select("features", "label").repartition(2).mapInArrow(tell, schema).collect()
    for row in sorted(rows, key=lambda row: (row.home, row.number)):
        x = torch.tensor(row.x, dtype=torch.float64)
        found[row.home].append((x, torch.tensor(row.y)))
    return found


def test_it_ends_where_a_run_without_spark_ends(spark: Any, tmp_path: Path) -> None:
    from spark_models import classifier, momentum  # type: ignore[import-not-found]

    from phalanx.train.start.seed import seed_everything

    # One map task: of several, Spark fetches the rows in the order in which they are ready.
    frame = features(spark, "double").coalesce(1)
    options = {"model_options": {"dtype": "float64"}, "seed": 7}
    fitted = estimator(**options).fit(frame)
    found = load(fitted.weights)
    parts = _as_partitioned(frame)
    seed_everything(*[7 * 1_000_003] * 3)
    first = classifier("float64")
    models = [classifier("float64") for _ in range(2)]
    for model in models:
        model.load_state_dict(first.state_dict())

    def work(rank: int) -> None:
        model = models[rank]
        run = phalanx.join(model, momentum(model, 0.1))
        form = lambda columns: (columns["features"], columns["label"])  # noqa: E731
        data = BlockData(_Partitions(parts), form=form, window=1 << 30)
        for _ in run.epochs(3):
            for x, y in run.batches(data, batch=60):
                run.backward(nn.functional.cross_entropy(model(x), y.long()))
                run.step()

    as_ranks(2, tmp_path / "run", work, RunSettings(seed=7))
    for name, value in models[0].state_dict().items():
        assert found[name].dtype == torch.float64
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)
        assert not torch.equal(value, first.state_dict()[name])


def test_a_model_that_fails_is_one_error_with_its_traceback(spark: Any) -> None:
    began = time.monotonic()
    with pytest.raises(ScriptError) as caught:
        estimator(model="spark_models:Fails").fit(features(spark))
    text = str(caught.value)
    assert text.startswith("worker 1 failed:")
    assert text.count("ValueError: this model fails on purpose") == 1
    assert "raise ValueError" in text and "spark_models.py" in text
    assert "py4j" not in text and time.monotonic() - began < 120


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "cross_entrop"}, "loss='cross_entrop' is unknown"),
        ({"loss": "spark_models:loss"}, "loss='spark_models:loss' is unknown"),
        ({"optimizer": "adamm"}, "optimizer='adamm' is unknown"),
        ({"label": "lable"}, "the DataFrame has no column 'lable'"),
        ({"features": "feature"}, "the DataFrame has no column 'feature'"),
        ({"epochs": 0}, "epochs=0 is not possible"),
        ({"workers": 0}, "workers=0 is not possible"),
        ({"retries": -1}, "retries=-1 is not possible"),
        ({"model": nn.Linear(1, 1)}, "cannot be sent to the executors"),
        ({"model": "spark_models"}, "names no function"),
    ],
)
def test_what_the_driver_refuses(spark: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        estimator(**options).fit(features(spark))


def test_a_vector_and_one_output(spark: Any) -> None:
    from pyspark.ml.functions import array_to_vector

    frame = features(spark).withColumn("features", array_to_vector("features"))
    options = {"model": "spark_models:regressor", "loss": "mse_loss", "workers": 1}
    fitted = estimator(**options).fit(frame)
    rows = fitted.transform(frame).collect()
    assert len(rows) == ROWS and rows[0].features.size == 4
    assert np.corrcoef([r.label for r in rows], [r.prediction for r in rows])[0, 1] > 0.5


def test_a_keras_model(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    from phalanx.spark import Model

    layers = [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss=loss)
    before = model.get_weights()
    fitted = estimator(model=model, optimizer="sgd", optimizer_options=None).fit(features(spark))
    rows = fitted.transform(features(spark)).collect()
    assert np.mean([row.prediction == row.label for row in rows]) > 0.75
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    fitted.write().save(str(tmp_path / "saved"))
    again = Model.load(str(tmp_path / "saved")).transform(features(spark)).collect()
    assert sorted(r.prediction for r in again) == sorted(r.prediction for r in rows)
    assert (tmp_path / "saved" / "model.keras").exists()
