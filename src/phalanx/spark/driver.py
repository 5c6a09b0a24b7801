"""The driver's side of a training: slots, the barrier stage, what comes back, another try."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from phalanx.core.errors import InputError, MachineError, ScriptError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.spark.messages import SCHEMA, TrainingRequest, WorkerFailure, WorkerFigures
from phalanx.spark.task import newest_checkpoint, work

Content = TypeVar("Content")
TICK, PATIENCE, MORE_COME = 0.2, 60.0, 10.0
"""Seconds: between looks, until the first executor is there, from the last one to another."""
LINES = 15
"""Of a traceback, that the driver's error shows."""
_LOST = re.compile(
    r"ExecutorLostFailure|Executor heartbeat timed out|Remote RPC client disassociated|"
    r"[Ww]orker lost|[Ee]xecutor .{0,80}(lost|exited|decommission)"
)


def check_slots(spark: Any, wanted: int | None, more_come: float = MORE_COME) -> int:
    """How many workers there will be. Executors that are still being started are waited for."""
    found, changed, enough = 0, time.monotonic(), math.inf if wanted is None else wanted
    several = not spark.sparkContext.master.startswith("local")
    while found < enough:
        count, patience = _slots(spark), (more_come if wanted else 2.0) if found else PATIENCE
        if count != found:
            found, changed = count, time.monotonic()
        elif not several or time.monotonic() - changed > patience:
            break
        time.sleep(TICK)
    if not found:
        raise InputError(
            f"Spark has started no executor in {PATIENCE:.0f} seconds",
            "Check that the cluster has free cores, and memory for spark.executor.memory.",
        )
    if wanted is not None and wanted > found:
        raise InputError(
            f"{wanted} workers need {wanted} slots at the same time, and Spark has {found}",
            f"Use workers={found}, or give the application more cores (spark.cores.max, "
            "spark.executor.instances, spark.task.cpus).",
        )
    return wanted or found


def _slots(spark: Any) -> int:
    try:
        inner = spark.sparkContext._jsc.sc()
        profile = inner.resourceProfileManager().defaultResourceProfile()
        return int(inner.maxNumConcurrentTasks(profile))  # by which Spark judges barrier stages
    except Exception:  # not every Spark lets this be asked
        return int(spark.sparkContext.defaultParallelism)


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
            lost = _loss_in(str(error), request.workers)
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


def _loss_in(text: str, workers: int) -> str:
    """What Spark says of a lost executor, in a line; empty if it says something else."""
    if "SPARK-24819" in text:
        raise InputError(
            f"{workers} workers need {workers} slots at the same time, and Spark has fewer",
            "Use fewer workers, or give the application more cores.",
        )
    if "SPARK-24942" in text:
        raise InputError(
            "Spark starts no workers side by side while executors come and go",
            "Set spark.dynamicAllocation.enabled=false.",
        )
    found = _LOST.search(text)
    return text[found.start() :].partition("\n")[0][:200] if found else ""


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
