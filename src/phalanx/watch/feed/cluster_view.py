"""The machines of a run or a pool: what each does now and did before, and who waits for whom."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.observe.events.collect import LineTail
from phalanx.observe.events.event_types import MachineSample
from phalanx.watch.feed.chart_types import Axis, Chart, Series

_MOST = 2048
"""Readings that are kept of a machine: of a long time, averages of several."""
_LONG_FILE = 8 << 20
"""Of a longer file, ``_MOST`` lines spread over it are read instead of all."""
_END = 1 << 16
UP, SILENT, LOST, ENDED, UNREACHABLE = "up", "silent", "lost", "ended", "unreachable"
SILENT_SECONDS = 10.0
_TIME = Axis("time", "s")

FIGURES: dict[str, tuple[str, str, Callable[[MachineSample], float | None]]] = {
    "cpu": ("CPU busy", "%", lambda s: s.cpu_percent),
    "memory": ("Memory", "%", lambda s: _part(s.memory_bytes, s.memory_total)),
    "memory_bytes": ("Memory in use", "bytes", lambda s: s.memory_bytes),
    "network_in": ("Received", "bytes/s", lambda s: s.network_received_per_second),
    "network_out": ("Sent", "bytes/s", lambda s: s.network_sent_per_second),
    "disk": ("Disk", "bytes/s", lambda s: s.disk_bytes_per_second),
    "gpu": ("GPU busy", "%", lambda s: s.gpu_percent),
}
"""The title, the unit and the value of each figure."""
_NO_STRIP = "memory_bytes"
"""Drawn in percent there."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine does now, or all together; null where the kernel does not tell."""

    cpu: float | None = None
    user: float | None = None
    system: float | None = None
    wait: float | None = None
    steal: float | None = None
    idle: float | None = None
    memory_bytes: float | None = None
    memory_percent: float | None = None
    swap_bytes: float | None = None
    received: float | None = None
    sent: float | None = None
    disk: float | None = None
    gpu: float | None = None
    pressure_cpu: float | None = None
    throttled: float | None = None


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
"""Where a reading has these figures."""
_SUMS = ("memory_bytes", "swap_bytes", "received", "sent", "disk")
"""Of all machines together these are sums, and all others means."""


class MachineNow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cores: float | None
    workers: list[int]
    now: Reading | None
    state: str


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
    machines: list[MachineNow]
    total: Reading
    charts: list[Chart]
    strip: dict[str, Strip]
    waits: list[WaitRow] = []


class Readings:
    """The figures of one machine over time, in bounded memory, and its newest reading."""

    def __init__(self) -> None:
        self.last: MachineSample | None = None
        self.times: list[float] = []
        self.columns: dict[str, list[float]] = {name: [] for name in FIGURES}
        """The values at these times; what is not known is NaN."""
        self._every = 1
        """So many readings are averaged into one."""
        self._waiting: list[MachineSample] = []

    def add(self, sample: MachineSample) -> None:
        if self.last is not None and sample.time <= self.last.time:
            return
        if sample.memory_total is None and self.last is not None and self.last.memory_total:
            total = self.last.memory_total  # only the first reading has it
            sample = msgspec.structs.replace(sample, memory_total=total)
        self.last = sample
        self._waiting.append(sample)
        if len(self._waiting) >= self._every:
            self._keep(self._waiting)
            self._waiting = []

    def thin_like(self, share: float) -> None:
        """Readings so far were a ``share`` of those that there are: average as many of the next."""
        self._every = max(1, round(1.0 / share))

    def rows(self) -> tuple[list[float], dict[str, list[float]]]:
        """Return the moments, and each figure at these."""
        if not self._waiting:
            return self.times, self.columns
        columns = {
            name: [*self.columns[name], _known([value(sample) for sample in self._waiting])]
            for name, (_, _, value) in FIGURES.items()
        }
        return [*self.times, self._waiting[-1].time], columns

    def _keep(self, samples: Sequence[MachineSample]) -> None:
        self.times.append(samples[-1].time)
        for name, (_, _, value) in FIGURES.items():
            self.columns[name].append(_known([value(sample) for sample in samples]))
        if len(self.times) > _MOST:
            self._every *= 2
            del self.times[:-1:2]
            for column in self.columns.values():
                del column[:-1:2]


class ReadingsFile:
    """Reads a machine's file of readings while it is written."""

    def __init__(self, path: Path) -> None:
        self.readings = Readings()
        self._path = path
        self._tail: LineTail | None = None
        self._decoder = msgspec.json.Decoder(MachineSample)

    def read(self) -> bool:
        """Read what is new, a bounded part at a time; return whether there was anything."""
        if self._tail is None:
            self._tail = LineTail(self._path, self._read_spread())
        lines = self._tail.poll()
        for line in lines:
            self._add(line)
        return bool(lines)

    def _read_spread(self) -> int:
        """Of a long file read some lines all over it; return where its last lines begin."""
        try:
            number = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return 0
        with os.fdopen(number, "rb") as file:
            about = os.fstat(number)
            if not stat.S_ISREG(about.st_mode) or about.st_size < _LONG_FILE:
                return 0
            length = 0
            for place in range(_MOST):
                file.seek(about.st_size * place // _MOST)
                if place:
                    file.readline(_LONG_FILE)
                line = file.readline(_LONG_FILE)
                length += len(line)
                self._add(line)
        self.readings.thin_like(length / about.st_size)
        return about.st_size - _END

    def _add(self, line: bytes) -> None:
        try:
            self.readings.add(self._decoder.decode(line))
        except (msgspec.MsgspecError, RecursionError):
            return


def make_cluster(
    machines: Mapping[str, tuple[float | None, list[int], str]],
    readings: Mapping[str, Readings],
    began: float,
    points: int,
    waits: Sequence[WaitRow] = (),
) -> ClusterView:
    """Draw machines, each with its cores, ranks and state, by what was read of them."""
    now = {name: _reading(found.last) for name, found in readings.items() if found.last}
    active = [now[name] for name, (_, _, state) in machines.items() if state == UP and name in now]
    xs, columns = _columns({n: readings[n] for n in machines if n in readings}, began, points)
    charts = [
        Chart(name, title, unit, _TIME, xs, [Series(m, values) for m, values in columns[name]])
        for name, (title, unit, _) in FIGURES.items()
        if columns[name]
    ]
    return ClusterView(
        machines=[
            MachineNow(
                name=name,
                cores=cores or _cores(readings.get(name)),
                workers=ranks,
                now=now.get(name),
                state=state,
            )
            for name, (cores, ranks, state) in machines.items()
        ],
        total=_total(active or list(now.values())),
        charts=charts,
        strip={chart.name: _strip(chart) for chart in charts if chart.name != _NO_STRIP},
        waits=list(waits),
    )


def _strip(chart: Chart) -> Strip:
    rows = [StripRow(machine=series.name, values=series.values) for series in chart.series]
    return Strip(x_values=chart.x_values, rows=rows)


def _cores(found: Readings | None) -> float | None:
    return found.last.cores if found is not None and found.last is not None else None


def _reading(sample: MachineSample) -> Reading:
    found = {name: getattr(sample, figure) for name, figure in _NOW.items()}
    return Reading(memory_percent=_part(sample.memory_bytes, sample.memory_total), **found)


def _total(readings: Sequence[Reading]) -> Reading:
    found: dict[str, float | None] = {}
    for name in Reading.__struct_fields__:
        mean = _mean([getattr(reading, name) for reading in readings])
        known = sum(getattr(reading, name) is not None for reading in readings)
        found[name] = mean * known if mean is not None and name in _SUMS else mean
    return Reading(**found)


def _columns(
    readings: Mapping[str, Readings], began: float, points: int
) -> tuple[list[float], dict[str, list[tuple[str, list[float | None]]]]]:
    """Return common moments, and by figure each machine's means around them."""
    rows = {name: found.rows() for name, found in readings.items() if found.last}
    columns: dict[str, list[tuple[str, list[float | None]]]] = {name: [] for name in FIGURES}
    if not rows:
        return [], columns
    first = min(times[0] for times, _ in rows.values())
    last = max(times[-1] for times, _ in rows.values())
    count = max(1, min(points, max(len(times) for times, _ in rows.values())))
    width = (last - first) / count or 1.0
    for machine, (times, figures) in rows.items():
        places = np.minimum((np.array(times) - first) / width, count - 1).astype(np.int64)
        for name, values in figures.items():
            means = _bucketed(places, np.array(values), count)
            if any(value is not None for value in means):
                columns[name].append((machine, means))
    xs = [first - began + (place + 0.5) * width for place in range(count)]
    return xs, columns


def _bucketed(
    places: NDArray[np.int64], values: NDArray[np.float64], count: int
) -> list[float | None]:
    """Average ``values`` by their places; a single empty place gets the value before it."""
    known = ~np.isnan(values)
    numbers = np.bincount(places[known], minlength=count)
    sums = np.bincount(places[known], weights=values[known], minlength=count)
    means = np.where(numbers, sums / np.maximum(numbers, 1), np.nan)
    means[1:] = np.where(numbers[1:], means[1:], means[:-1])
    return [None if math.isnan(mean) else mean for mean in means.tolist()]


def _known(values: Sequence[float | None]) -> float:
    mean = _mean(values)
    return math.nan if mean is None else mean


def _part(used: float | None, whole: float | None) -> float | None:
    return 100.0 * used / whole if used is not None and whole else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
