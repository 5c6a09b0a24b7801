"""Reads what TensorFlow's profiler wrote, and adds up its operators as those of torch are."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

from phalanx.observe.operators import operator_names as ops
from phalanx.observe.operators.trace_table import STEP, Event, OperatorSums, span_of

_AROUND = re.compile(
    r"while|body|cond|then|else|gradient_tape|_\d+|\w*PartitionedCall|replica_\d+|cluster_\w+"
)
"""Parts of an operator's name that say where it was called, not to which layer it belongs."""
_OPTIMIZERS = re.compile(r"Ada\w+|Nadam|SGD|RMSprop|Ftrl|Lion|LossScaleOptimizer", re.IGNORECASE)
_NEXT = "IteratorGetNextOp::DoCompute"


def read_events(data: bytes) -> Iterator[Event]:
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
    sums = OperatorSums(span_of(e) for e in events if e["name"] == STEP)
    for event in events:
        name, span = str(event["name"]), span_of(event)
        path, _, kind = ("next", "", "IteratorGetNext") if name == _NEXT else name.rpartition(":")
        plain = path and re.fullmatch(r"_?[A-Z]\w*", kind) and not path.endswith(":")
        if not plain or not sums.counts(span):
            continue
        parts = [part for part in path.split("/") if not _AROUND.fullmatch(part)]
        kind = re.sub(r"^_Mkl(Native)?", "", kind)
        layer = parts[1] if len(parts) > 2 else ""
        found = ops.sort(kind, layer)
        if parts and _OPTIMIZERS.fullmatch(parts[0]) and found[0] != ops.COMMUNICATION:
            found = ops.UPDATE
        phase = found[0] if found[0] in (ops.INPUT, ops.COMMUNICATION, ops.OPTIMIZER) else ops.OTHER
        if phase == ops.OTHER and len(parts) > 1:
            phase = ops.BACKWARD if "gradient_tape" in path.split("/") else ops.FORWARD
        of_layer = layer if phase in (ops.FORWARD, ops.BACKWARD) else ""
        sums.row(kind, found, phase, of_layer).self_seconds += span[1] - span[0]
        sums.busy[phase].append(span)
    return sums.table(each)
