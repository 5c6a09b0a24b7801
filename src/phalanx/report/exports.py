"""A run's figures for other tools: TensorBoard's event files, and Prometheus' text format."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.terminal import printable
from phalanx.observe.summary.history import MEASURES
from phalanx.observe.summary.run_records import RunFiles
from phalanx.observe.summary.summary import Summary

SUFFIX = ".phalanx"
"""The end of the names of event files that Phalanx has written."""
_PLACES = ("epoch", "seconds", "earlier")
_RUN = (
    "epochs",
    "samples",
    "seconds",
    "samples_per_second",
    *MEASURES,
    "bytes_sent",
    "checkpoints",
)
_GROUPS = {"phases": "phase", "time": "part", "metrics": "metric"}
_WORKER = ("samples", "steps", "samples_per_second", "wait_share", "peak_memory_bytes")
_HELP = {
    "run_info": "What the run is; always 1.",
    "phases": "Seconds of each phase, of the worker that took longest.",
    "time": "Seconds per worker by what its steps spent them on; hidden: beside computing.",
    "metrics": "The last value of each other figure that the script logged.",
}


def write_tensorboard(summary: Summary, run: RunFiles, folder: Path) -> int:
    """Write the epochs' figures and the machines' readings; return how many numbers these are."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary as Scalars
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise InputError(
            "the package tensorboard is not installed", "pip install 'phalanx-train[export]'"
        ) from None
    writer, count = EventFileWriter(str(folder), filename_suffix=SUFFIX), 0
    for tag, value, step, wall in itertools.chain(_epochs(summary, run), _machines(run)):
        scalars = Scalars(value=[Scalars.Value(tag=tag, simple_value=value)])
        writer.add_event(Event(wall_time=wall, step=step, summary=scalars))
        count += 1
    writer.close()
    return count


def _epochs(summary: Summary, run: RunFiles) -> Iterator[tuple[str, float, int, float]]:
    """Yield each figure with its name, epoch (from 1) and time of day."""
    began = run.joined[0].wall if run.joined else 0.0
    for row in summary.history:
        for name, value in row.items():
            if value is not None and name not in _PLACES:
                kind, _, what = name.partition("_")
                # TensorBoard puts what has the same beginning side by side.
                tag = f"{what}/{kind}" if name in MEASURES else f"epoch/{name}"
                yield tag, float(value), int(row["epoch"] or 0) + 1, began + (row["seconds"] or 0.0)


def _machines(run: RunFiles) -> Iterator[tuple[str, float, int, float]]:
    """Yield each reading of each machine; the step is in seconds since the first worker joined."""
    if not run.joined:
        return
    first = run.joined[0]
    for machine, samples in run.samples.items():
        for sample in samples:
            since = sample.time - first.time
            for name in sample.__struct_fields__[1:]:
                if isinstance(value := getattr(sample, name), int | float):
                    yield f"{name}/{machine}", float(value), int(since), first.wall + since


def prometheus_text(summary: Summary) -> str:
    """Return the run's last figures in Prometheus' text exposition format."""
    found: dict[str, list[str]] = {}

    def add(name: str, value: Any, **labels: Any) -> None:
        if isinstance(value, int | float) and math.isfinite(value):
            pairs = ",".join(f'{k}="{_escaped(str(v))}"' for k, v in labels.items())
            found.setdefault(name, []).append(f"phalanx_{name}{{{pairs}}} {value!r}")

    run, plain = summary.run, msgspec.to_builtins(summary)
    add("run_info", 1, run=run, status=summary.status, strategy=summary.strategy or "",
        system=summary.system, workers=summary.workers or "")  # fmt: skip
    for name in _RUN:
        add(name, plain[name], run=run)
    for name, label in _GROUPS.items():
        for key, value in plain[name].items():
            add(name if name == "metrics" else f"{name}_seconds", value, run=run, **{label: key})
    for machine in plain["machines"]:
        for name, value in machine["resources"].items():
            for kind, number in value.items() if isinstance(value, Mapping) else ():
                add(f"machine_{name}", number, run=run, machine=machine["name"], stat=kind)
    for worker in plain["per_worker"]:
        place = {"machine": worker["machine"] or "", "worker": worker["rank"]}
        for name in _WORKER:
            add(f"worker_{name}", worker[name], run=run, **place)
    return "".join(_family(name, lines) for name, lines in found.items())


def _family(name: str, lines: list[str]) -> str:
    told = _HELP.get(name.removesuffix("_seconds"), f"{name.replace('_', ' ').capitalize()}.")
    head = f"# HELP phalanx_{name} {told}\n# TYPE phalanx_{name} gauge\n"
    return head + "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return printable(text).replace("\\", r"\\").replace('"', r"\"")
