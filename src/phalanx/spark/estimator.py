"""``Estimator``: an estimator of ``pyspark.ml`` that trains a PyTorch or Keras model by Phalanx.

This is the driver's side: it starts the barrier stage, reads its result, and retries.
"""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
from pyspark.ml.base import Estimator as SparkEstimator
from pyspark.ml.param import Param
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWritable, MLReadable, MLReader
from pyspark.sql.functions import coalesce, lit, rand

from phalanx.core.errors import InputError, MachineError, ScriptError
from phalanx.core.registry import did_you_mean
from phalanx.core.run_folder.run_key import RunKey
from phalanx.core.spec import parse_spec
from phalanx.launch.cluster.spark_session import PATIENCE, check_slots, encrypts, loss_in
from phalanx.spark import messages
from phalanx.spark.building import check_names, check_trusted
from phalanx.spark.kept_run import keep_run
from phalanx.spark.task import newest_checkpoint, work
from phalanx.spark.transformer import Model, check_column, with_array

Content = TypeVar("Content")
LINES = 15
"""Lines of a traceback that the driver's error shows."""
_PARAMS = {
    "model": "module:function that makes a torch model",
    "keras": "a Keras model: the bytes of its .keras file, in base64",
    "model_options": "keyword arguments of the model's function",
    "optimizer": "a name of torch.optim, or module:function of the model",
    "optimizer_options": "keyword arguments of the optimizer, such as lr",
    "loss": "the name of a loss of torch.nn.functional",
    "features": "the column of features: array<float>, or a vector",
    "label": "the column of labels",
    "validation": "a share of the rows to hold out, or the column that is true for these",
    "strategy": "how the workers agree on the parameters",
    "workers": "number of workers; None: as many as Spark has slots",
    "batch": "rows of a step, of all workers together",
    "epochs": "passes over the rows",
    "seed": "the seed of the weights and of the rows' order",
    "store": "a folder that driver and executors share, for checkpoints; None: there are none",
    "retries": "how often training begins again when Spark loses an executor",
}


class Estimator(SparkEstimator, DefaultParamsWritable, MLReadable):  # type: ignore[misc]
    """Trains on the rows of a DataFrame, with one worker for each of Spark's slots.

    ``model`` is ``"module:function"`` or a compiled Keras model on its torch backend, which brings
    its own optimizer and loss. Modules are imported on the executors: ``addPyFile`` sends them.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        model_options: dict[str, Any] | None = None,
        optimizer: str = "sgd",
        optimizer_options: dict[str, Any] | None = None,
        loss: str = "cross_entropy",
        features: str = "features",
        label: str = "label",
        validation: float | str | None = None,
        strategy: str = "allreduce",
        workers: int | None = None,
        batch: int = 128,
        epochs: int = 1,
        seed: int = 0,
        store: str | None = None,
        retries: int = 1,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in _PARAMS}
        super().__init__()
        if model is not None and not isinstance(model, str):
            given |= {"model": None, "keras": _keras_text(model), "loss": _kind_of_loss(model)}
        for name, text in _PARAMS.items():
            # An attribute for each, as pyspark.ml finds the parameters of a stage.
            setattr(self, name, Param(self, name, text))
        self._setDefault(**dict.fromkeys(_PARAMS))
        self._set(**{name: value for name, value in given.items() if value is not None})

    def setParams(self, **values: Any) -> Estimator:  # noqa: N802  (pyspark's name)
        for name in values:
            if name not in _PARAMS:
                raise InputError(f"there is no parameter {name!r}", did_you_mean(name, _PARAMS))
        self._set(**values)
        return self

    def _fit(self, dataset: Any) -> Model:
        chosen = {name: self.getOrDefault(name) for name in _PARAMS}
        keras = chosen.pop("keras")
        source = messages.ModelSource(
            model_options=chosen.pop("model_options") or {},
            optimizer_options=chosen.pop("optimizer_options") or {},
            **{n: chosen.pop(n) for n in ("model", "optimizer", "loss", "features", "label")},
        )
        if source.model is None and keras is None:
            raise InputError("there is no model to train", 'Give model="module:function".')
        check_names(source)
        check_column(dataset, source.label, "label")
        frame, array = with_array(dataset, source.features)
        for name, least in {"batch": 1, "epochs": 1, "seed": 0, "retries": 0, "workers": 1}.items():
            value = least if name == "workers" and chosen[name] is None else chosen[name]
            if not isinstance(value, int) or value < least:
                wanted = f"Give a whole number from {least}."
                raise InputError(f"{name}={value!r} is not possible", wanted)
        retries, validation = chosen.pop("retries"), chosen.pop("validation")
        chosen["strategy"] = parse_spec(chosen["strategy"]).text
        chosen["workers"] = check_slots(dataset.sparkSession, chosen["workers"])
        chosen["store"] = chosen["store"] and self._run_folder(chosen["store"])
        request = messages.TrainingRequest(
            source=source, tls=encrypts(dataset.sparkSession), **chosen
        )
        columns = [frame[array].alias(source.features), frame[source.label]]
        if validation is not None:
            columns.append(_held_out(frame, validation, request.seed).alias(messages.HELD_OUT))
        began = time.time()
        weights, figures, events = _train(
            frame.select(*columns), request, keras and base64.b64decode(keras), retries
        )
        summary, folder = keep_run(request, events, began, None if keras else weights)
        return Model(source, weights, figures, summary.history, folder)

    def _run_folder(self, store: str) -> str:
        """Make a new folder for each fit, so that none continues from checkpoints of another."""
        folder = Path(store).absolute() / f"{time.strftime('%Y%m%d-%H%M%S')}-{self.uid}"
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise InputError(
                f"cannot write into store={store}: {error.strerror}",
                "Name a folder that the driver and all executors can write to.",
            ) from None
        return str(folder)

    @classmethod
    def read(cls) -> Any:
        return _EstimatorReader()


class _EstimatorReader(MLReader):  # type: ignore[misc]
    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        estimator = Estimator()
        estimator._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(estimator, metadata)
        check_trusted(path, *map(estimator.getOrDefault, ("model", "optimizer")))
        return estimator


def _held_out(frame: Any, validation: Any, seed: int) -> Any:
    """Return a column that is true for the rows to hold out."""
    if isinstance(validation, str):
        check_column(frame, validation, "validation")
        return coalesce(frame[validation].cast("boolean"), lit(False))
    if isinstance(validation, bool) or not 0 < validation < 1:
        raise InputError(
            f"validation={validation!r} is not possible",
            "Give a share of the rows (0 to 1), or the name of a column that is true for some.",
        )
    return rand(seed) < validation


def _train(
    frame: Any, request: messages.TrainingRequest, keras: bytes | None, retries: int
) -> tuple[bytes, list[messages.WorkerFigures], list[bytes]]:
    """Return the weights, and figures and events by worker; begin again if an executor is lost."""
    rows = frame.repartition(request.workers)
    for left in range(retries, -1, -1):
        key, text = RunKey.new().text(), msgspec.json.encode(request).decode()
        function = partial(work, training=text, key=key, keras=keras)
        try:
            found = rows.mapInArrow(function, messages.SCHEMA, barrier=True).collect()
            return _read(found, request.workers)
        except MachineError as error:  # reported by a worker that lost another worker
            lost = error.cause
        except (InputError, ScriptError):
            raise
        except Exception as error:
            lost = loss_in(str(error), request.workers)
            if not lost:
                raise
        if not left:
            raise MachineError(
                f"Spark lost an executor, and retries={retries}: {lost}",
                "Read the executors' logs: too little memory is the most frequent reason.",
            )
        where = "the start" if request.store else "the start (there is no store=)"
        if newest_checkpoint(request.store):
            where = "its newest checkpoint"
        words = f"phalanx: Spark lost an executor; the training begins again from {where}"
        print(words, file=sys.stderr, flush=True)
        check_slots(frame.sparkSession, request.workers, PATIENCE)
    raise AssertionError("not reached")


def _read(
    rows: Sequence[Any], workers: int
) -> tuple[bytes, list[messages.WorkerFigures], list[bytes]]:
    failures = _of_kind(rows, "failure", messages.WorkerFailure)
    causes = {w: one for w, one in failures.items() if one.kind != "peer"} or failures
    for worker, cause in sorted(causes.items()):  # raises the first one
        if cause.kind == "input":
            raise InputError(f"worker {worker}: {cause.text}", cause.remedy)
        if cause.kind == "peer":
            raise MachineError(cause.text)
        lines = cause.text.splitlines()
        shown = "\n".join(["…", *lines[-LINES:]] if len(lines) > LINES else lines)
        raise ScriptError(f"worker {worker} failed:\n{shown}", cause.remedy)

    def whole(kind: str, worker: int) -> bytes:
        mine = (row for row in rows if (row.kind, row.worker) == (kind, worker))
        return b"".join(bytes(row.data) for row in sorted(mine, key=lambda row: row.part))

    figures = _of_kind(rows, "figures", messages.WorkerFigures)
    events = [whole("events", worker) for worker in range(workers)]
    return whole("weights", 0), [figures[worker] for worker in sorted(figures)], events


def _of_kind(rows: Sequence[Any], kind: str, type: type[Content]) -> dict[int, Content]:
    found = (row for row in rows if row.kind == kind)
    return {row.worker: msgspec.json.decode(bytes(row.data), type=type) for row in found}


def _keras_text(model: Any) -> str:
    if not any(kind.__module__.partition(".")[0] == "keras" for kind in type(model).__mro__):
        raise InputError(
            f"a {type(model).__name__} cannot be sent to the executors, which would need pickle",
            'Name a function that makes the model: model="module:function".',
        )
    import keras

    if keras.backend.backend() != "torch":
        raise InputError(
            f"from Spark, Keras trains on torch, and this model is on {keras.backend.backend()}",
            "Set KERAS_BACKEND=torch before keras is imported.",
        )
    if getattr(model, "optimizer", None) is None:
        raise InputError("the Keras model is not compiled", "Call model.compile(…) first.")
    with TemporaryDirectory(prefix="phalanx-") as folder:
        model.save(str(Path(folder) / messages.KERAS))
        return base64.b64encode((Path(folder) / messages.KERAS).read_bytes()).decode()


def _kind_of_loss(model: Any) -> str:
    """Return a loss that shows whether predictions are classes; Keras trains by the model's."""
    loss = model.loss
    name = getattr(loss, "name", None) or getattr(loss, "__name__", None) or str(loss)
    return "cross_entropy" if "categorical" in name.lower() else "mse_loss"
