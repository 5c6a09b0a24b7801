"""A run's figures for other tools: TensorBoard's event files, and Prometheus' text format."""

from __future__ import annotations

import math
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


def write_tensorboard(summary: Summary, run: RunFiles, folder: Path) -> None:
    """Write the figures of every epoch."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary as Scalars
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        remedy = "pip install 'phalanx-train[export]'"
        raise InputError("the package tensorboard is not installed", remedy) from None
    writer, began = EventFileWriter(str(folder), filename_suffix=SUFFIX), run.joined[0].wall
    for row in summary.history:
        values = []
        for name in row.keys() - {"epoch", "seconds", "earlier"}:
            kind, _, what = name.partition("_")  # TensorBoard puts equal beginnings together
            tag = f"{what}/{kind}" if name in MEASURES else f"epoch/{name}"
            if (value := row[name]) is not None:
                values.append(Scalars.Value(tag=tag, simple_value=value))
        step, wall = int(row["epoch"] or 0) + 1, began + (row["seconds"] or 0.0)
        writer.add_event(Event(wall_time=wall, step=step, summary=Scalars(value=values)))
    writer.close()


def prometheus_text(summary: Summary) -> str:
    """Return the run's last figures in Prometheus' text exposition format."""
    found: dict[str, list[str]] = {}
    plain, run = msgspec.to_builtins(summary), {"run": summary.run}

    def add(name: str, value: Any, **labels: Any) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            pairs = ",".join(f'{k}="{_escaped(v)}"' for k, v in (run | labels).items())
            head = [f"# TYPE phalanx_{name} gauge"]
            found.setdefault(name, head).append(f"phalanx_{name}{{{pairs}}} {value!r}")

    add("info", 1, **{k: plain[k] for k in ("status", "system", "strategy")})
    for name, value in plain.items():
        add(name, value)
    for name in ("phases", "time", "metrics"):
        for part, value in plain[name].items():
            add(name if name == "metrics" else f"{name}_seconds", value, part=part)
    for machine in plain["machines"]:
        for name, use in machine["resources"].items():
            for kind, value in use.items() if isinstance(use, dict) else ():
                add(f"machine_{name}", value, machine=machine["name"], stat=kind)
    for worker in plain["per_worker"]:
        for name in worker.keys() - {"rank"}:
            place = {"machine": worker["machine"], "worker": worker["rank"]}
            add(f"worker_{name}", worker[name], **place)
    return "".join("\n".join(lines) + "\n" for lines in found.values())


def _escaped(value: Any) -> str:
    return printable(str(value)).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
