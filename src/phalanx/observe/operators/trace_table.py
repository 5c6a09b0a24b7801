"""Adds up the trace of some steps: the seconds of each operator, by phase and layer.

A row is an outermost operator: what torch calls inside it, it calls to compute it.
"""

from __future__ import annotations

import bisect
import importlib
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from phalanx.observe.operators import operator_names as ops

OURS, LAYER = "phalanx::", "layer::"
"""The beginnings of ranges' names: of parts of Phalanx, of layers of the model."""
STEP = OURS + "step"
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_EVALUATE = "autograd::engine::evaluate_function: "
Span = tuple[float, float]
Event = dict[str, Any]
Key = tuple[str, str, str, str, str]
"""An operator, its group and kind, its phase, its layer."""


class _Sums:
    """The seconds of each operator in the steps that count, on the host and on a GPU."""

    def __init__(self, steps: Iterable[Span]) -> None:
        """Leave out the first step, the last, which the profile's end cuts off, and those that took
        three times the median, because they did something else too, such as an evaluation."""
        found = sorted(steps)[1:-1]
        if not found:
            raise ValueError("training ended before a step was over")
        most = 3 * statistics.median(end - start for start, end in found)
        self.steps = [(start, end) for start, end in found if end - start <= most]
        self.host: dict[Key, float] = defaultdict(float)
        self.device: dict[Key, float] = defaultdict(float)
        self._busy: list[Span] = []

    def add(self, row: Key, span: Span) -> None:
        self.host[row] += span[1] - span[0]
        self._busy.append(span)

    def counts(self, span: Span) -> bool:
        """Return whether something began in a step that counts."""
        at = bisect.bisect_right(self.steps, (span[0], float("inf"))) - 1
        return at >= 0 and span[0] < self.steps[at][1]

    def table(self, each: int = 1) -> dict[str, Any]:
        """Return everything per step; ``each`` of the spans of a step covers so many."""
        count, length = each * len(self.steps), sum(end - start for start, end in self.steps)
        names = ("operator", "group", "kind", "phase", "layer", "self_seconds", "device_seconds")
        rows = [
            (*key, self.host[key] / count, self.device[key] / count)
            for key in {**self.host, **self.device}
        ]
        return {
            "steps": count,
            "step_seconds": length / count,
            "python_seconds": max(0.0, length - _covered(self._busy)) / count,
            "device": "cuda" if any(self.device.values()) else "cpu",
            "operators": [dict(zip(names, row, strict=True)) for row in rows],
        }


def _covered(spans: list[Span]) -> float:
    """Return the seconds in which at least one of the spans lasts."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _span(event: Event) -> Span:
    start = float(event["ts"]) * 1e-6
    return start, start + float(event["dur"]) * 1e-6


def table_of_torch(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the table of a trace as torch exports it."""
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and "dur" in e]
    return _TorchReader(events).sums.table()


@dataclass
class _Frame:
    """An event around others of its thread, and the row that they belong to."""

    end: float
    row: Key | None = None
    phase: str = ops.FORWARD
    layer: str = ""


class _TorchReader:
    def __init__(self, events: list[Event]) -> None:
        host = [e for e in events if e.get("cat") in ("cpu_op", "user_annotation")]
        self.sums = _Sums(_span(e) for e in host if e["name"] == STEP)
        self._layers: dict[Any, str] = {}
        """The layer of an operator, by the number that its backward operator has too."""
        self._owners: dict[Any, Key | None] = {}
        """The rows of events, by the number that their kernels have too."""
        self._read_host(host)
        self._read_kernels(e for e in events if e.get("cat") in _KERNELS)

    def _read_host(self, host: list[Event]) -> None:
        threads: dict[Any, list[Event]] = defaultdict(list)
        for event in host:
            threads[event["tid"]].append(event)
        # The script's thread is the first, because it knows the layers.
        for events in sorted(threads.values(), key=lambda es: all(e["name"] != STEP for e in es)):
            frames = [_Frame(float("inf"))]
            for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
                span = _span(event)
                while frames[-1].end <= span[0]:
                    frames.pop()
                # A step may begin and end inside the optimizer's range: it is around nothing.
                if event["name"] != STEP and self.sums.counts(span):
                    frames.append(self._frame(event, span, frames[-1]))

    def _frame(self, event: Event, span: Span, outer: _Frame) -> _Frame:
        name, args = event["name"], event.get("args", {})
        inner, number = replace(outer, end=span[1]), args.get("Sequence number")
        if name.startswith(LAYER):
            inner.layer = name.removeprefix(LAYER)
            return inner
        if name.startswith(_EVALUATE):
            inner.phase = ops.BACKWARD
            inner.layer = self._layers.get(number, "")
        elif number is not None and inner.layer:
            self._layers[number] = inner.layer  # the last operator with it is the one that made it
        name = name.removeprefix(_EVALUATE).removeprefix("torch::autograd::")
        group, kind = ops.sort(name)
        if group in ops.PHASES or (outer.row is None and event["cat"] == "cpu_op"):
            inner.phase = group if group in ops.PHASES else inner.phase
            inner.row = (name, group, kind, inner.phase, inner.layer)
            self.sums.add(inner.row, span)
            if outer.row is not None:
                self.sums.host[outer.row] -= span[1] - span[0]
        if "External id" in args:
            self._owners[args["External id"]] = inner.row
        return inner

    def _read_kernels(self, kernels: Iterable[Event]) -> None:
        """Give the seconds on a GPU to the operators that started them."""
        for event in kernels:
            name, span = event["name"][:100], _span(event)
            row = self._owners.get(event.get("args", {}).get("External id"))
            if row is None and self.sums.counts(span):  # a graph of kernels has no operator
                row = (name, *ops.sort(name), ops.OTHER, "")
            if row is not None:
                self.sums.device[row] += span[1] - span[0]


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
    sums = _Sums(_span(e) for e in events if e["name"] == STEP)
    for event in events:
        name, span = str(event["name"]), _span(event)
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
        phase = found[0] if found[0] in ops.PHASES else ops.OTHER
        if phase == ops.OTHER and len(parts) > 1:
            phase = ops.BACKWARD if "gradient_tape" in path.split("/") else ops.FORWARD
        of_layer = layer if phase in (ops.FORWARD, ops.BACKWARD) else ""
        sums.add((kind, *found, phase, of_layer), span)
    return sums.table(each)
