"""The fitted model: a transformer that adds predictions, and is saved without pickle."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from pyspark.ml.base import Model as SparkModel
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
)
from pyspark.sql.functions import raise_error, when
from pyspark.sql.types import ArrayType, DoubleType, StringType, StructField, StructType
from safetensors.torch import load

from phalanx.adapters.torch_models import from_pairs
from phalanx.core.errors import InputError
from phalanx.data.blocks.arrow import to_columns
from phalanx.spark import building
from phalanx.spark.messages import KERAS, ModelSource, WorkerFigures

ARRAY, PROBLEM = "__phalanx_features", "__phalanx_problem"
MOST_ROWS = 4096
"""The most rows that the model gets at once."""
PART_BYTES = 16 << 20


class Model(SparkModel, MLWritable, MLReadable):  # type: ignore[misc]
    """Made by ``Estimator.fit``; ``figures`` are those of the training, one for each worker,
    ``history`` has a row for each epoch, and ``run_folder`` is for ``phalanx report``."""

    features = Param(Params._dummy(), "features", "the column of features", TypeConverters.toString)
    prediction = Param(Params._dummy(), "prediction", "the column to add", TypeConverters.toString)

    def __init__(
        self,
        source: ModelSource,
        weights: bytes,
        figures: list[WorkerFigures],
        history: list[dict[str, Any]],
        run_folder: Path | None = None,
    ) -> None:
        super().__init__()
        self.history, self.run_folder = history, run_folder
        self.source, self.weights, self.figures = source, weights, figures
        self._setDefault(features=source.features, prediction="prediction")

    def _transform(self, dataset: Any) -> Any:
        name = self.getOrDefault(self.prediction)
        frame, features = with_array(dataset, self.getOrDefault(self.features))
        one_number = self.source.loss in building.CLASS_LOSSES or self.figures[0].width == 1
        kind = DoubleType() if one_number else ArrayType(DoubleType())
        added = [StructField(name, kind), StructField(PROBLEM, StringType())]
        function = partial(
            predict, weights=dataset.sparkSession.sparkContext.broadcast(self.weights),
            source=msgspec.json.encode(self.source).decode(), names=(features, name),
            one_number=one_number, trained=self.figures[0].features,
        )  # fmt: skip
        made = frame.mapInArrow(function, StructType([*frame.schema.fields, *added]))
        # Raised by SQL, an error is one line; raised by a task, it has a Python traceback.
        failed = raise_error(made[PROBLEM]).cast(kind)
        checked = when(made[PROBLEM].isNull(), made[name]).otherwise(failed)
        return made.select(*dataset.columns, checked.alias(name))

    def write(self) -> Any:
        return _ModelWriter(self)

    @classmethod
    def read(cls) -> Any:
        return _ModelReader()


class _ModelWriter(DefaultParamsWriter):  # type: ignore[misc]
    def saveImpl(self, path: str) -> None:  # noqa: N802  (pyspark's name)
        model = self.instance
        about = msgspec.to_builtins(
            {"source": model.source, "figures": model.figures, "history": model.history}
        )
        DefaultParamsWriter.saveMetadata(model, path, self.sparkSession, {"phalanx": about})
        file, system = _stored(self.sparkSession, path, model.source)
        stream = system.create(file, True)
        for start in range(0, len(model.weights), PART_BYTES):
            stream.write(bytearray(model.weights[start : start + PART_BYTES]))
        stream.close()


class _ModelReader(MLReader):  # type: ignore[misc]
    def load(self, path: str) -> Any:
        spark = self.sparkSession
        metadata = DefaultParamsReader.loadMetadata(path, spark)
        source = msgspec.convert(metadata["phalanx"]["source"], ModelSource)
        building.check_trusted(path, source.model, source.optimizer)
        figures = msgspec.convert(metadata["phalanx"]["figures"], list[WorkerFigures])
        file, system = _stored(spark, path, source)
        stream = system.open(file)
        weights = bytes(spark._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        stream.close()
        model = Model(source, weights, figures, metadata["phalanx"].get("history", []))
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model


def _stored(spark: Any, path: str, source: ModelSource) -> tuple[Any, Any]:
    """Return the file of the weights, on whatever storage Spark has, and its file system."""
    name = "model.safetensors" if source.model else KERAS
    file = spark._jvm.org.apache.hadoop.fs.Path(f"{path}/{name}")
    return file, file.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())


def with_array(frame: Any, features: str) -> tuple[Any, str]:
    """Return ``frame`` with the features as an array, and the name of that column."""
    check_column(frame, features, "features")
    if not isinstance(frame.schema[features].dataType, VectorUDT):
        return frame, features
    return frame.withColumn(ARRAY, vector_to_array(frame[features])), ARRAY


def check_column(frame: Any, name: str, what: str) -> None:
    if name not in frame.columns:
        raise InputError(
            f"the DataFrame has no column {name!r}",
            f"Name one as {what}=: it has {', '.join(frame.columns)}.",
        )


# -- on the executors ------------------------------------------------------------------------

_loaded: dict[str, Any] = {}
"""Spark uses a Python process for many tasks: the model of the last transformer is kept."""


def predict(
    batches: Iterator[Any], weights: Any, source: str, names: tuple[str, str], one_number: bool,
    trained: list[int] | None,
) -> Iterator[Any]:  # fmt: skip
    """The function for ``mapInArrow``: yield batches with predictions, or the reason for none.
    ``names``: of features and predictions. ``trained``: the shape of the features in training."""
    import pyarrow as pa

    about, (features, name) = msgspec.json.decode(source, type=ModelSource), names
    kind = pa.float64() if one_number else pa.list_(pa.float64())
    for batch in batches:
        rows, shape, problem = batch.num_rows, trained, None
        values: Any = [None] * rows
        try:
            if rows:
                column = to_columns(pa.Table.from_batches([batch]).select([features]), "the rows")
                building.check_numbers(features, column[features])
                model, shape = _model(about, weights.value), list(column[features].shape[1:])
                found = _outputs(model, building.as_inputs(column[features], model), about.loss)
                values = found.reshape(-1).numpy() if one_number else list(found.numpy())
        except Exception as error:
            problem = _described(error, features, shape, trained)
        made = [pa.array(values, type=kind), pa.array([problem] * rows, type=pa.string())]
        names_of = [*batch.schema.names, name, PROBLEM]
        yield pa.RecordBatch.from_arrays([*batch.columns, *made], names=names_of)


def _described(
    error: Exception, features: str, shape: list[int] | None, trained: list[int] | None
) -> str:
    if isinstance(error, InputError):
        return f"{error.cause}. {error.remedy}"
    if trained is not None and shape != trained:
        there = f"column {features!r} has {building.numbers(shape)} numbers a row"
        return f"{there}; the model was trained on {building.numbers(trained)}"
    traceback.print_exc()
    said = (str(error).splitlines() or [""])[0]
    return f"the model failed: {type(error).__name__}: {said} (more is in the executor's log)"


@torch.no_grad()
def _outputs(model: Any, rows: torch.Tensor, loss: str) -> torch.Tensor:
    found = torch.cat([model(part).detach().cpu() for part in rows.split(MOST_ROWS)])
    found = found.argmax(1) if loss in building.CLASS_LOSSES else found
    return found.reshape(len(found), -1).double()


def _model(source: ModelSource, weights: bytes) -> Any:
    key = hashlib.sha256(weights + msgspec.json.encode(source)).hexdigest()
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = _made(source, weights).eval()
    return _loaded[key]


def _made(source: ModelSource, weights: bytes) -> Any:
    if source.model is not None:
        model = building.torch_model(source)
        model.load_state_dict(from_pairs(load(weights)))
        return model
    with TemporaryDirectory(prefix="phalanx-") as folder:
        (Path(folder) / KERAS).write_bytes(weights)
        return building.keras_model(Path(folder) / KERAS)
