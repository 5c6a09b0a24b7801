"""Adds up the trace of some steps of torch: the seconds of each operator, by phase and layer.

A row is an outermost operator: what torch calls inside it, it calls to compute it. Only the
standard library is used: workers of other frameworks have nothing else.
"""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.observe.operators.operator_names import (
    ALL_REDUCE,
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    INPUT,
    OPTIMIZER,
    OTHER,
    Sorted,
    sort_torch,
)

STEP, LAYER, OURS = "phalanx::step", "layer::", "phalanx::"
"""Names of ranges in a trace: a whole step, a layer of the model, a part of Phalanx."""
MOST_ROWS = 3000
_OUTLIER = 3.0
"""Steps that took so many times the median did something else too, such as an evaluation."""
_EVALUATE = "autograd::engine::evaluate_function: "
_RANGES = (
    (OURS + "optimizer", OPTIMIZER),
    ("Optimizer.", OPTIMIZER),
    (OURS + "input", INPUT),
    ("enumerate(DataLoader)", INPUT),
    (OURS, COMMUNICATION),
    ("gloo:", COMMUNICATION),
    ("nccl:", COMMUNICATION),
)
"""Beginnings of ranges that are rows of their own, with their phases."""

Span = tuple[float, float]


@dataclass
class Row:
    """An operator in a phase and a layer, summed over the steps; times are in seconds."""

    calls: int = 0
    own: float = 0.0
    total: float = 0.0
    device: float = 0.0


@dataclass
class OperatorSums:
    """The rows of the steps that count, and when something was computed or sent."""

    steps: Sequence[Span]
    rows: dict[tuple[str, str, str, Sorted], Row] = field(default_factory=lambda: defaultdict(Row))
    busy: list[Span] = field(default_factory=list)
    sending: list[Span] = field(default_factory=list)
    computing: list[Span] = field(default_factory=list)
    has_device: bool = False

    def counts(self, start: float) -> bool:
        """Whether something that began then is part of a step that counts."""
        at = bisect.bisect_right(self.steps, (start, float("inf"))) - 1
        return at >= 0 and start < self.steps[at][1]

    def row(self, name: str, phase: str, layer: str, found: Sorted) -> Row:
        return self.rows[name, phase, layer, found]

    def took(self, span: Span, group: str) -> None:
        """Note when something ran: what neither runs nor sends nor reads is Python."""
        self.busy.append(span)
        if group == COMMUNICATION:
            self.sending.append(span)
        elif group != INPUT:
            self.computing.append(span)

    def table(self, each: int = 1) -> dict[str, Any]:
        """Return everything per step; ``each`` of the spans in ``steps`` has so many."""
        count, length = each * len(self.steps), sum(end - start for start, end in self.steps)
        both = _covered([*self.sending, *self.computing])
        rows = [
            {
                "operator": name, "group": found[0], "kind": found[1], "phase": phase,
                "layer": layer, "calls": row.calls / count, "self_seconds": row.own / count,
                "total_seconds": row.total / count, "device_seconds": row.device / count,
            }
            for (name, phase, layer, found), row in self.rows.items()
        ]  # fmt: skip
        rows.sort(key=lambda row: -max(row["self_seconds"], row["device_seconds"]))
        return {
            "steps": count,
            "step_seconds": length / count,
            "python_seconds": max(0.0, length - _covered(self.busy)) / count,
            "exposed_seconds": (both - _covered(self.computing)) / count,
            "device": "cuda" if self.has_device else "cpu",
            "operators": rows[:MOST_ROWS],
        }


def usual_steps(steps: Iterable[Span]) -> list[Span]:
    """Return the steps that count: not the first, not the last, which the end of the profile cuts
    off, and none that took far too long."""
    found = sorted(steps)[1:-1]
    if not found:
        raise ValueError("training ended before a step was over")
    most = _OUTLIER * statistics.median(end - start for start, end in found)
    return [(start, end) for start, end in found if end - start <= most]


def _covered(spans: list[Span]) -> float:
    """Return the seconds in which at least one of the spans lasts."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


@dataclass
class _Frame:
    """An event around others of its thread."""

    end: float
    row: Row | None = None
    phase: str | None = None
    layer: str = ""
    folds: bool = False
    """Whether all inside belongs to its row."""


def table_of_torch(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the table of a trace as torch exports it."""
    threads, launches, kernels = defaultdict(list), {}, []
    for event in trace["traceEvents"]:
        kind = event.get("cat")
        if kind in ("cpu_op", "user_annotation"):
            threads[event["tid"]].append(event)
        elif kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels.append(event)
        elif kind in ("cuda_runtime", "cuda_driver"):
            launches[event["args"].get("correlation")] = event["args"].get("External id")
    steps = usual_steps(_span(e) for found in threads.values() for e in found if e["name"] == STEP)
    reader = _TorchReader(OperatorSums(steps))
    first = [any(e["name"] == STEP for e in found) for found in threads.values()]
    ordered = sorted(zip(first, threads.values(), strict=True), key=lambda pair: not pair[0])
    for _, found in ordered:  # the thread of the script, whose layers the others need, is first
        reader.forwards_end(found)
    for _, found in ordered:
        reader.read(sorted(found, key=lambda e: (e["ts"], -e["dur"])))
    reader.read_kernels(kernels, launches)
    return reader.sums.table()


def _span(event: dict[str, Any]) -> Span:
    start = float(event["ts"]) * 1e-6
    return start, start + float(event["dur"]) * 1e-6


class _TorchReader:
    def __init__(self, sums: OperatorSums) -> None:
        self.sums = sums
        self._layers: dict[int, str] = {}
        """The layer of an operator, by the number that its backward operator has too."""
        self._owners: dict[int, tuple[Row, str]] = {}
        """The rows of events, with their groups, by the number that their kernels have too."""
        self._backward: list[float] = []

    def forwards_end(self, events: list[dict[str, Any]]) -> None:
        """Note when backward passes run: what the script computes after the last is no forward."""
        self._backward += [_span(e)[0] for e in events if e["name"].startswith(_EVALUATE)]
        self._backward.sort()

    def read(self, events: list[dict[str, Any]]) -> None:
        """Read the events of one thread, in the order of their beginnings."""
        open_frames: list[_Frame] = [_Frame(float("inf"))]
        for event in events:
            if event["name"] == STEP:  # it ends inside the optimizer's range, and begins there
                continue
            span = _span(event)
            while open_frames[-1].end <= span[0]:
                open_frames.pop()
            open_frames.append(self._frame(event, span, open_frames[-1]))

    def _frame(self, event: dict[str, Any], span: Span, outer: _Frame) -> _Frame:
        name, operates, args = event["name"], event["cat"] == "cpu_op", event.get("args", {})
        inner = _Frame(span[1], outer.row, outer.phase, outer.layer, outer.folds)
        if not self.sums.counts(span[0]):
            return inner
        if name.startswith(LAYER):
            inner.layer = name.removeprefix(LAYER)
            return inner
        number, backward = args.get("Sequence number"), name.startswith(_EVALUATE)
        if operates and number is not None and inner.layer and not backward:
            self._layers[number] = inner.layer  # the last operator with it is the one that made it
        ranged = next((phase for start, phase in _RANGES if name.startswith(start)), None)
        name = name.removeprefix(_EVALUATE).removeprefix("torch::autograd::")
        if operates and ranged is None:
            self.sums.took(span, outer.phase or "")
        if (ranged is None and not operates) or (outer.folds and ranged != COMMUNICATION):
            self._own(args, inner)
            return inner
        inner.phase = ranged or (BACKWARD if backward else outer.phase or self._usual(span[0]))
        if backward:
            inner.layer = self._layers.get(number or -1, "")
        found = sort_torch(name)
        if inner.phase in (INPUT, COMMUNICATION):
            found = inner.phase, {COMMUNICATION: ALL_REDUCE}.get(inner.phase, INPUT)
            self.sums.took(span, inner.phase)
        row = self.sums.row(name, inner.phase, inner.layer, found)
        row.calls += 1
        row.own += span[1] - span[0]
        row.total += span[1] - span[0]
        if outer.row is not None:
            outer.row.own -= span[1] - span[0]
        inner.row, inner.folds = row, ranged not in (INPUT, COMMUNICATION)
        self._own(args, inner)
        return inner

    def _own(self, args: dict[str, Any], frame: _Frame) -> None:
        if frame.row is not None and (number := args.get("External id")):
            self._owners[number] = frame.row, frame.phase or ""

    def _usual(self, start: float) -> str:
        """Return the phase of an operator of the script: forward, if a backward pass follows."""
        end = self.sums.steps[bisect.bisect_right(self.sums.steps, (start, float("inf"))) - 1][1]
        at = bisect.bisect_left(self._backward, start)
        return FORWARD if at < len(self._backward) and self._backward[at] < end else OTHER

    def read_kernels(self, kernels: list[dict[str, Any]], launches: dict[Any, Any]) -> None:
        """Give the seconds on a GPU to the operators that started them."""
        spans = []
        for kernel in kernels:
            args, span = kernel.get("args", {}), _span(kernel)
            number = args.get("External id") or launches.get(args.get("correlation"))
            found = sort_torch(kernel["name"])
            row, phase = self._owners.get(number or -1, (None, found[0]))
            if row is None and not self.sums.counts(span[0]):
                continue
            if row is None:  # a graph of kernels belongs to no operator
                row = self.sums.row(kernel["name"][:100], OTHER, "", found)
                row.calls += 1
            row.device += span[1] - span[0]
            spans.append((span, phase))
        if spans:
            sums, sums.has_device = self.sums, True
            sums.sending = [s for s, phase in spans if phase == COMMUNICATION] or sums.sending
            sums.computing = [s for s, phase in spans if phase != COMMUNICATION]
