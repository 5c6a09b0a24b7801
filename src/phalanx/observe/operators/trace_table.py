"""Adds up the trace of some steps of torch: the seconds of each operator, by phase and layer.

A row is an outermost operator: what torch calls inside it, it calls to compute it.
"""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from phalanx.observe.operators import operator_names as ops

OURS, LAYER = "phalanx::", "layer::"
"""The beginnings of ranges' names: of parts of Phalanx, of layers of the model."""
STEP = OURS + "step"
_OUTLIER = 3.0
"""A step that took so many times the median did something else too, such as an evaluation."""
_EVALUATE = "autograd::engine::evaluate_function: "
_RANGES = {
    OURS + "optimizer": ops.OPTIMIZER,
    "Optimizer.": ops.OPTIMIZER,
    OURS + "input": ops.INPUT,
    "enumerate(DataLoader)": ops.INPUT,
    OURS: ops.COMMUNICATION,
    "gloo:": ops.COMMUNICATION,
    "nccl:": ops.COMMUNICATION,
}
"""How the names of ranges begin that have a phase of their own."""
_WAITS = {
    ops.INPUT: (ops.INPUT, "input"),
    ops.COMMUNICATION: (ops.COMMUNICATION, "all-reduce"),
}

Span = tuple[float, float]
Event = dict[str, Any]


@dataclass
class Row:
    """An operator in a phase and a layer, summed over the steps."""

    self_seconds: float = 0.0
    device_seconds: float = 0.0


class OperatorSums:
    """The rows of the steps that count, and when each phase computed, read or sent."""

    def __init__(self, steps: Iterable[Span]) -> None:
        """Leave out the first step, the last, which the profile's end cuts off, and outliers."""
        found = sorted(steps)[1:-1]
        if not found:
            raise ValueError("training ended before a step was over")
        most = _OUTLIER * statistics.median(end - start for start, end in found)
        self.steps = [(start, end) for start, end in found if end - start <= most]
        self._rows: dict[tuple[str, str, str, str, str], Row] = defaultdict(Row)
        self.busy: dict[str, list[Span]] = defaultdict(list)
        self.kernels: dict[str, list[Span]] = defaultdict(list)
        self.blocked: list[Span] = []
        """When an operator did nothing but send and wait."""

    def counts(self, span: Span) -> bool:
        """Return whether something began in a step that counts."""
        at = bisect.bisect_right(self.steps, (span[0], float("inf"))) - 1
        return at >= 0 and span[0] < self.steps[at][1]

    def row(self, name: str, found: tuple[str, str], phase: str, layer: str = "") -> Row:
        return self._rows[name, *found, phase, layer]

    def table(self, each: int = 1) -> dict[str, Any]:
        """Return everything per step; ``each`` of the spans of a step covers so many."""
        count, length = each * len(self.steps), sum(end - start for start, end in self.steps)
        timed = self.kernels or self.busy
        sending = timed[ops.COMMUNICATION] or self.busy[ops.COMMUNICATION]
        computing = [s for phase, spans in timed.items() if phase not in _WAITS for s in spans]
        exposed = _covered([*sending, *computing]) - _covered(computing) + _covered(self.blocked)
        busy = _covered([span for spans in self.busy.values() for span in spans])
        names = ("operator", "group", "kind", "phase", "layer", "self_seconds", "device_seconds")
        rows = [
            (*key, row.self_seconds / count, row.device_seconds / count)
            for key, row in self._rows.items()
        ]
        return {
            "steps": count,
            "step_seconds": length / count,
            "python_seconds": max(0.0, length - busy) / count,
            "exposed_seconds": exposed / count,
            "device": "cuda" if self.kernels else "cpu",
            "operators": [dict(zip(names, row, strict=True)) for row in rows],
        }


def _covered(spans: list[Span]) -> float:
    """Return the seconds in which at least one of the spans lasts."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def span_of(event: Event) -> Span:
    start = float(event["ts"]) * 1e-6
    return start, start + float(event["dur"]) * 1e-6


def table_of_torch(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the table of a trace as torch exports it."""
    reader = _TorchReader([e for e in trace["traceEvents"] if e.get("ph") == "X" and "dur" in e])
    reader.read_threads()
    reader.read_kernels()
    return reader.sums.table()


@dataclass
class _Frame:
    """An event around others of its thread; ``folds``: all inside belongs to its row."""

    end: float
    row: Row | None = None
    phase: str = ""
    layer: str = ""
    folds: bool = False


class _TorchReader:
    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self._host = [e for e in events if e.get("cat") in ("cpu_op", "user_annotation")]
        self.sums = OperatorSums(span_of(e) for e in self._host if e["name"] == STEP)
        self._layers: dict[Any, str] = {}
        """The layer of an operator, by the number that its backward operator has too."""
        self._owners: dict[Any, _Frame] = {}
        """Where events belong, by the number that their kernels have too."""

    def read_threads(self) -> None:
        threads: dict[Any, list[Event]] = defaultdict(list)
        for event in self._host:
            threads[event["tid"]].append(event)
        # The script's thread is the first, because it knows the layers.
        for events in sorted(threads.values(), key=lambda es: all(e["name"] != STEP for e in es)):
            frames = [_Frame(float("inf"))]
            for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
                span = span_of(event)
                while frames[-1].end <= span[0]:
                    frames.pop()
                # A step may begin and end inside the optimizer's range: it is around nothing.
                if event["name"] != STEP and self.sums.counts(span):
                    frames.append(self._frame(event, span, frames[-1]))

    def _frame(self, event: Event, span: Span, outer: _Frame) -> _Frame:
        name, args = event["name"], event.get("args", {})
        operates = event["cat"] == "cpu_op"
        inner = replace(outer, end=span[1])
        if name.startswith(LAYER):
            inner.layer = name.removeprefix(LAYER)
            return inner
        number, backward = args.get("Sequence number"), name.startswith(_EVALUATE)
        ranged = next((phase for start, phase in _RANGES.items() if name.startswith(start)), "")
        if number is not None and inner.layer and not backward:
            self._layers[number] = inner.layer  # the last operator with it is the one that made it
        if ranged == ops.COMMUNICATION and outer.folds:
            self.sums.blocked.append(span)
        if ranged == ops.COMMUNICATION or (not outer.folds and (ranged or operates)):
            inner.phase = ranged or outer.phase or ops.FORWARD
            if backward:
                inner.phase = ops.BACKWARD
                inner.layer = self._layers.get(number, "")
            name = name.removeprefix(_EVALUATE).removeprefix("torch::autograd::")
            found = _WAITS.get(inner.phase) or ops.sort(name)
            inner.row = self.sums.row(name, found, inner.phase, inner.layer)
            inner.row.self_seconds += span[1] - span[0]
            if outer.row is not None:
                outer.row.self_seconds -= span[1] - span[0]
            inner.folds = ranged not in _WAITS
        if operates or ranged in _WAITS:
            self.sums.busy[inner.phase].append(span)
        if "External id" in args:
            self._owners[args["External id"]] = inner
        return inner

    def read_kernels(self) -> None:
        """Give the seconds on a GPU to the operators that started them."""
        for event in self._events:
            span = span_of(event)
            if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
                continue
            owner = self._owners.get(event.get("args", {}).get("External id"))
            phase = owner.phase if owner else ops.OTHER
            row = owner.row if owner else None
            if row is None and self.sums.counts(span):
                # A graph of kernels belongs to no operator.
                row = self.sums.row(event["name"][:100], ops.sort(event["name"]), ops.OTHER)
            if row is not None:
                row.device_seconds += span[1] - span[0]
                self.sums.kernels[phase].append(span)
