"""JSON messages from the driver to tasks, between tasks, to workers, and back to the driver."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

SCHEMA = "worker int, part int, kind string, data binary"
"""Columns of the rows that a task returns; ``kind`` is weights, figures, events or failure."""
ROWS, HELD, WEIGHTS, KERAS = "rows.arrow", "held.arrow", "weights", "model.keras"
FIGURES, FAILURE = "figures", "failure"
"""Files in the folder of a task; ``HELD`` are rows for validation."""
HELD_OUT = "__phalanx_held_out"
"""The column that is true for these rows."""


class ModelSource(Struct, frozen=True, kw_only=True):
    """How a model is made and trained."""

    model: str | None
    """``module:function``; ``None`` if the model comes as the bytes of a ``.keras`` file."""
    model_options: dict[str, Any]
    optimizer: str
    optimizer_options: dict[str, Any]
    loss: str
    features: str
    label: str


class TrainingRequest(Struct, frozen=True, kw_only=True):
    """The driver's message to all tasks."""

    source: ModelSource
    strategy: str
    workers: int
    batch: int
    epochs: int
    seed: int
    tls: bool
    store: str | None
    """The run's folder, on storage that the executors share."""


class WorkerFailure(Struct, frozen=True, kw_only=True):
    kind: Literal["input", "script", "peer"]
    """``peer``: the worker ended because another one did."""
    text: str
    remedy: str = ""


class TaskReport(Struct, frozen=True, kw_only=True):
    """The message of each task to the others before its worker begins."""

    address: str
    port: int
    rows: list[int]
    bytes: int
    held_out: int = 0
    """Rows for validation."""
    seconds: float = 0.0
    """How long this task's rows took to come."""
    resume: str | None = None
    """The checkpoint to continue from; only that of the first task is used."""
    problem: WorkerFailure | None = None


class WorkerRequest(Struct, frozen=True, kw_only=True):
    """The message to a worker's process, on standard input: other users cannot read the key."""

    training: TrainingRequest
    rank: int
    folder: str
    tasks: list[TaskReport]
    key: str
    parent: int
    gpu: str | None = None


class WorkerFigures(Struct, frozen=True, kw_only=True):
    """A worker's figures of its training."""

    rows: int
    """Rows that this worker trained on in the last epoch."""
    seconds: float
    input_seconds: float = 0.0
    """The part of ``seconds`` in which the worker waited for rows."""
    samples_per_second: float
    loss: float | None
    """The loss over this worker's rows of the last epoch."""
    width: int
    """How many numbers the model returns for a row."""
    features: list[int] | None = None
    """The shape of a row of features; ``None`` for models that were saved without it."""
    resumed: str | None
