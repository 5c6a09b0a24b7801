"""Records what TensorFlow computes, and adds up its operators as those of torch are."""

from __future__ import annotations

import gzip
import importlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phalanx.observe.operators import operator_names as ops
from phalanx.observe.operators.trace_table import STEP, Event, OperatorSums

_AROUND = re.compile(
    r"while|body|cond|then|else|gradient_tape|_\d+|\w*PartitionedCall|replica_\d+|cluster_\w+"
)
"""Parts of an operator's name that say where it was called, not to which layer it belongs."""
_OPTIMIZERS = re.compile(r"Ada\w+|Nadam|SGD|RMSprop|Ftrl|Lion|LossScaleOptimizer", re.IGNORECASE)
_NEXT = "IteratorGetNextOp::DoCompute"


class TensorFlowRecorder:
    """Records by TensorFlow's profiler; ``tensorflow`` is the module."""

    framework = "tensorflow"

    def __init__(self, tensorflow: Any) -> None:
        self._profiler = tensorflow.profiler.experimental
        self._each = 1

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-profile-")
        self._profiler.start(self._folder.name)
        self._step = self._profiler.Trace(STEP)
        self._step.__enter__()

    def mark(self, count: int) -> None:
        self._each = count
        self._step.__exit__(None, None, None)
        self._step = self._profiler.Trace(STEP)
        self._step.__enter__()

    def stop(self, trace: Path) -> dict[str, Any]:
        self._step.__exit__(None, None, None)
        self._profiler.stop()
        with self._folder as folder:
            events = list(_events(next(Path(folder).rglob("*.xplane.pb")).read_bytes()))
        with gzip.open(trace, "wt", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)
        return table_of_tensorflow(events, self._each)


def _events(data: bytes) -> Iterator[Event]:
    """Turn TensorFlow's own format into events as torch writes them and Perfetto reads them."""
    space = importlib.import_module("tensorflow.tsl.profiler.protobuf.xplane_pb2").XSpace()
    space.ParseFromString(data)
    for plane in space.planes:
        begin = min((line.timestamp_ns for line in plane.lines), default=0)
        for thread, line in enumerate(plane.lines):
            for event in line.events:
                start = (line.timestamp_ns - begin) * 1e-3 + event.offset_ps * 1e-6
                name = plane.event_metadata[event.metadata_id].name
                found = {"name": name, "ts": start, "dur": event.duration_ps * 1e-6}
                if event.duration_ps:
                    yield {"ph": "X", "pid": plane.name, "tid": thread, **found}


def table_of_tensorflow(events: list[Event], each: int = 1) -> dict[str, Any]:
    """Return the table of a trace; ``each`` of its ranges of a step covers so many steps."""
    spans = [(e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6) for e in events]
    named = list(zip((str(e["name"]) for e in events), spans, strict=True))
    sums = OperatorSums(span for name, span in named if name == STEP)
    for name, span in named:
        path, _, kind = ("next", "", "IteratorGetNext") if name == _NEXT else name.rpartition(":")
        plain = path and re.fullmatch(r"_?[A-Z]\w*", kind) and not path.endswith(":")
        if not plain or sums.end_of_step(span[0]) is None:
            continue
        parts = [part for part in path.split("/") if not _AROUND.fullmatch(part)]
        kind = re.sub(r"^_Mkl(Native)?", "", kind)
        layer = parts[1] if len(parts) > 2 else ""
        found = ops.sort_tensorflow(kind, layer)
        if parts and _OPTIMIZERS.fullmatch(parts[0]) and found[0] != ops.COMMUNICATION:
            found = ops.OPTIMIZER, ops.UPDATE
        phase = found[0] if found[0] in (ops.INPUT, ops.COMMUNICATION, ops.OPTIMIZER) else ops.OTHER
        if phase == ops.OTHER and len(parts) > 1:
            phase = ops.BACKWARD if "gradient_tape" in path.split("/") else ops.FORWARD
        of_layer = layer if phase in (ops.FORWARD, ops.BACKWARD) else ""
        sums.row(kind, found, phase, of_layer).add(span)
        sums.busy[phase].append(span)
    return sums.table(each)
