"""The machines of a run or a pool: what each does now and did before, and who waits for whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.observe.events.collect import LineTail
from phalanx.observe.events.event_types import MachineSample
from phalanx.watch.feed.chart_types import Axis, Chart, Series
from phalanx.watch.feed.run_view import MachineRow

MOST = 600
"""Readings that are kept of a machine: of a long time, one of several."""
UP, LOST, ENDED, UNREACHABLE = "up", "lost", "ended", "unreachable"
_TIME = Axis("time", "s")
_NOW = {
    "cpu": "cpu_percent",
    **{part: f"cpu_{part}" for part in ("user", "system", "wait", "steal", "idle")},
    **{name: name for name in ("memory_bytes", "swap_bytes", "pressure_cpu")},
    "received": "network_received_per_second",
    "sent": "network_sent_per_second",
    "disk": "disk_bytes_per_second",
    "gpu": "gpu_percent",
    "throttled": "throttled_percent",
}
"""The figures of a machine, and what they are called in a reading."""
_SUMS = ("memory_bytes", "swap_bytes", "received", "sent", "disk")
"""Of all machines together these are sums, and all others means."""
_CHARTS = (
    ("cpu", "CPU busy", "%", "cpu"),
    ("memory", "Memory", "%", "memory_percent"),
    ("memory_bytes", "Memory in use", "bytes", "memory_bytes"),
    ("network_in", "Received", "bytes/s", "received"),
    ("network_out", "Sent", "bytes/s", "sent"),
    ("disk", "Disk", "bytes/s", "disk"),
    ("gpu", "GPU busy", "%", "gpu"),
)
"""The name, the title and the unit of each chart, and its figure."""
_NO_STRIP = "memory_bytes"
"""Drawn in percent there."""


class StripRow(msgspec.Struct, frozen=True, kw_only=True):
    machine: str
    values: list[float | None]


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of all machines over time, a row each."""

    x_values: list[float]
    rows: list[StripRow]


class WaitRow(msgspec.Struct, frozen=True, kw_only=True, rename={"late": "for"}):
    """How long the workers of ``by`` waited for those of ``late``, added up."""

    by: str
    late: str
    seconds: float


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    machines: list[MachineRow]
    total: dict[str, float | None]
    charts: list[Chart]
    strip: dict[str, Strip]
    waits: list[WaitRow] = []


class Readings:
    """The figures of one machine over time, in bounded memory: handed in, or from its file."""

    def __init__(self, file: Path | None = None) -> None:
        self.last: MachineSample | None = None
        self.times: list[float] = []
        self.figures: list[dict[str, float | None]] = []
        """The figures at these times."""
        self._every = 1
        """Of so many readings one is kept."""
        self._count = 0
        self._tail = LineTail(file) if file is not None else None
        self._decoder = msgspec.json.Decoder(MachineSample)

    def read(self) -> bool:
        """Read what the file has new, a bounded part at a time; return whether it had anything."""
        lines = self._tail.poll() if self._tail is not None else []
        for line in lines:
            try:
                self.add(self._decoder.decode(line))
            except (msgspec.MsgspecError, RecursionError):
                continue
        return bool(lines)

    def add(self, sample: MachineSample) -> None:
        if self.last is not None and sample.time <= self.last.time:
            return
        if sample.memory_total is None and self.last is not None:  # only the first reading has it
            sample = msgspec.structs.replace(sample, memory_total=self.last.memory_total)
        self.last = sample
        self._count += 1
        if self._count % self._every:
            return
        self.times.append(sample.time)
        self.figures.append(_figures(sample))
        if len(self.times) > MOST:
            self._every *= 2
            del self.times[:-1:2], self.figures[:-1:2]


def _figures(sample: MachineSample) -> dict[str, float | None]:
    found = {name: getattr(sample, figure) for name, figure in _NOW.items()}
    whole, used = sample.memory_total, sample.memory_bytes
    found["memory_percent"] = 100.0 * used / whole if whole and used is not None else None
    return found


def make_cluster(
    machines: Sequence[MachineRow],
    readings: Mapping[str, Readings],
    began: float,
    points: int,
    waits: Sequence[WaitRow] = (),
) -> ClusterView:
    """Draw machines by what was read of them; ``began``: time 0."""
    shown = [_as_now(row, readings.get(row.name)) for row in machines]
    known = {row.name: readings[row.name] for row in shown if row.now}
    charts = _charts(known, began, points)
    strips = {
        chart.name: Strip(
            x_values=chart.x_values,
            rows=[StripRow(machine=one.name, values=one.values) for one in chart.series],
        )
        for chart in charts
        if chart.name != _NO_STRIP
    }
    total = _total([row.now for row in shown if row.now and row.state in (UP, ENDED)])
    return ClusterView(machines=shown, total=total, charts=charts, strip=strips, waits=list(waits))


def _as_now(row: MachineRow, found: Readings | None) -> MachineRow:
    if found is None or found.last is None:
        return row
    cores = row.cores or found.last.cores
    return msgspec.structs.replace(row, now=_figures(found.last), cores=cores)


def _total(machines: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    total: dict[str, float | None] = {}
    for name in (*_NOW, "memory_percent"):
        known = [value for now in machines if (value := now[name]) is not None]
        whole = sum(known) / (1 if name in _SUMS else max(1, len(known)))
        total[name] = whole if known else None
    return total


def _charts(readings: Mapping[str, Readings], began: float, points: int) -> list[Chart]:
    """Return the charts: at common moments, each machine's means around them."""
    if not readings:
        return []
    first = min(found.times[0] for found in readings.values())
    last = max(found.times[-1] for found in readings.values())
    count = max(1, min(points, max(len(found.times) for found in readings.values())))
    width = (last - first) / count or 1.0
    xs = [first - began + (place + 0.5) * width for place in range(count)]
    places = {
        name: np.minimum((np.array(found.times) - first) / width, count - 1).astype(np.int64)
        for name, found in readings.items()
    }
    columns = {
        name: np.array([[now[one] for *_, one in _CHARTS] for now in found.figures], dtype=float).T
        for name, found in readings.items()
    }
    charts = []
    for number, (name, title, unit, _) in enumerate(_CHARTS):
        series = [
            Series(machine, _means(places[machine], figures[number], count))
            for machine, figures in columns.items()
            if not np.isnan(figures[number]).all()
        ]
        if series:
            charts.append(Chart(name, title, unit, _TIME, xs, series))
    return charts


def _means(
    places: NDArray[np.int64], values: NDArray[np.float64], count: int
) -> list[float | None]:
    """Average values by their places; a single empty place gets the value before it."""
    known = ~np.isnan(values)
    numbers = np.bincount(places[known], minlength=count)
    sums = np.bincount(places[known], weights=values[known], minlength=count)
    means = np.where(numbers, sums / np.maximum(numbers, 1), np.nan)
    means[1:] = np.where(numbers[1:], means[1:], means[:-1])
    return [mean if math.isfinite(mean) else None for mean in means.tolist()]
