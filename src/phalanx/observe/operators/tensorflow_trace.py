"""Records what TensorFlow computes, and adds up its operators as those of torch are.

Only the standard library is used, and the TensorFlow that the script has imported.
"""

from __future__ import annotations

import gzip
import importlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.observe.operators.operator_names import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    INPUT,
    OPTIMIZER,
    OTHER,
    sort_tensorflow,
)
from phalanx.observe.operators.trace_table import STEP, OperatorSums, usual_steps

_AROUND = re.compile(
    r"while|body|cond|then|else|gradient_tape|_\d+|\w*PartitionedCall|replica_\d+|cluster_\w+"
)
"""Parts of an operator's name that say where it was called, not to which layer it belongs."""
_OPTIMIZERS = re.compile(
    r"Ada\w+|NAdam|Nadam|SGD|RMSprop|Ftrl|Lion|LossScaleOptimizer", re.IGNORECASE
)
_NEXT = "IteratorGetNextOp::DoCompute"


class Event(NamedTuple):
    """Something that a thread did; times are in seconds."""

    thread: int
    start: float
    seconds: float
    name: str


class TensorFlowRecorder:
    """Records by TensorFlow's profiler; ``tensorflow`` is the module."""

    framework = "tensorflow"

    def __init__(self, tensorflow: Any) -> None:
        self._profiler = tensorflow.profiler.experimental

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-profile-")
        self._profiler.start(self._folder.name)
        self._begin()

    def _begin(self) -> None:
        self._step = self._profiler.Trace(STEP)
        self._step.__enter__()

    def mark(self, count: int) -> None:
        self._each = count
        self._step.__exit__(None, None, None)
        self._begin()

    def stop(self, trace: Path) -> dict[str, Any]:
        self._step.__exit__(None, None, None)
        self._profiler.stop()
        with self._folder as folder:
            events = list(_events(next(Path(folder).rglob("*.xplane.pb")).read_bytes()))
        _write(trace, events)
        return table_of_tensorflow(events, self._each)


def _events(data: bytes) -> Iterator[Event]:
    """Yield the events of all threads in TensorFlow's own format."""
    space = importlib.import_module("tensorflow.tsl.profiler.protobuf.xplane_pb2").XSpace()
    space.ParseFromString(data)
    for plane in space.planes:
        for number, line in enumerate(plane.lines):
            for event in line.events:
                start = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                name = plane.event_metadata[event.metadata_id].name
                if event.duration_ps:
                    yield Event(number, start, event.duration_ps * 1e-12, name)


def _write(trace: Path, events: list[Event]) -> None:
    """Write the events as Perfetto reads them."""
    begin = min((event.start for event in events), default=0.0)
    found = [
        {
            "ph": "X", "pid": 0, "tid": event.thread, "name": event.name,
            "ts": 1e6 * (event.start - begin), "dur": 1e6 * event.seconds,
        }
        for event in events
    ]  # fmt: skip
    with gzip.open(trace, "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": found}, file)


def table_of_tensorflow(events: list[Event], each: int = 1) -> dict[str, Any]:
    """Return the table of a trace; ``each`` of its ranges of a step covers so many steps."""
    steps = usual_steps((e.start, e.start + e.seconds) for e in events if e.name == STEP)
    sums = OperatorSums(steps)
    for event in events:
        path, colon, kind = event.name.rpartition(":")
        named = bool(colon) and not path.endswith(":") and bool(re.fullmatch(r"_?[A-Z]\w*", kind))
        if not sums.counts(event.start) or not (named or event.name == _NEXT):
            continue
        parts = [part for part in path.split("/") if not _AROUND.fullmatch(part)]
        kind = re.sub(r"^_Mkl(Native)?", "", kind) if named else "IteratorGetNext"
        layer = parts[1] if len(parts) > 2 else ""
        found = sort_tensorflow(kind, layer)
        if parts and _OPTIMIZERS.fullmatch(parts[0]):
            found, layer = (OPTIMIZER, "update"), ""
        phase = found[0] if found[0] in (INPUT, COMMUNICATION, OPTIMIZER) else OTHER
        if phase == OTHER and (layer or len(parts) > 1):
            phase = BACKWARD if "gradient_tape" in path.split("/") else FORWARD
        row = sums.row(kind, phase, layer if phase in (FORWARD, BACKWARD) else "", found)
        row.calls += 1
        row.own += event.seconds
        row.total += event.seconds
        sums.took((event.start, event.start + event.seconds), phase)
    return sums.table(each)
