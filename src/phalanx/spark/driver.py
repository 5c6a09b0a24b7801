"""The driver's side of a training: the barrier stage, what comes back, another try."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from phalanx.core.errors import InputError, MachineError, ScriptError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.launch.cluster.spark_session import PATIENCE, check_slots, loss_in
from phalanx.spark.messages import SCHEMA, TrainingRequest, WorkerFailure, WorkerFigures
from phalanx.spark.task import newest_checkpoint, work

Content = TypeVar("Content")
LINES = 15
"""Of a traceback, that the driver's error shows."""


def train(
    frame: Any, request: TrainingRequest, keras: bytes | None, retries: int
) -> tuple[bytes, list[WorkerFigures]]:
    """Weights, and figures by worker. If an executor is lost, it begins again."""
    rows = frame.repartition(request.workers)
    for left in range(retries, -1, -1):
        key, text = RunKey.new().text(), msgspec.json.encode(request).decode()
        function = partial(work, training=text, key=key, keras=keras)
        try:
            return _read(rows.mapInArrow(function, SCHEMA, barrier=True).collect())
        except MachineError as error:  # of a worker that has lost another
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


def _read(rows: Sequence[Any]) -> tuple[bytes, list[WorkerFigures]]:
    failures = _of_kind(rows, "failure", WorkerFailure)
    causes = {w: one for w, one in failures.items() if one.kind != "peer"} or failures
    for worker, cause in sorted(causes.items()):  # the first one, once
        if cause.kind == "input":
            raise InputError(f"worker {worker}: {cause.text}", cause.remedy)
        if cause.kind == "peer":
            raise MachineError(cause.text)
        lines = cause.text.splitlines()
        shown = "\n".join(["…", *lines[-LINES:]] if len(lines) > LINES else lines)
        raise ScriptError(f"worker {worker} failed:\n{shown}", cause.remedy)
    parts = sorted((row.part, bytes(row.data)) for row in rows if row.kind == "weights")
    figures = _of_kind(rows, "figures", WorkerFigures)
    return b"".join(data for _, data in parts), [figures[worker] for worker in sorted(figures)]


def _of_kind(rows: Sequence[Any], kind: str, type: type[Content]) -> dict[int, Content]:
    found = (row for row in rows if row.kind == kind)
    return {row.worker: msgspec.json.decode(bytes(row.data), type=type) for row in found}
