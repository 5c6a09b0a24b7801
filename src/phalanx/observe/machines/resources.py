"""Averages, minima and maxima of the machines' readings."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from phalanx.observe.events.event_types import MachineSample


class Range(msgspec.Struct, kw_only=True):
    avg: float | None = None
    min: float | None = None
    max: float | None = None


class Resources(msgspec.Struct, kw_only=True):
    cpu_percent: Range = msgspec.field(default_factory=Range)
    memory_bytes: Range = msgspec.field(default_factory=Range)
    network_bytes_per_second: Range = msgspec.field(default_factory=Range)
    disk_bytes_per_second: Range = msgspec.field(default_factory=Range)
    gpu_percent: Range = msgspec.field(default_factory=Range)
    gpu_memory_bytes: Range = msgspec.field(default_factory=Range)
    watts: Range = msgspec.field(default_factory=Range)


_FIELDS = Resources.__struct_fields__
_MEANS = ("cpu_percent", "gpu_percent")
_APART = 0.9
"""Seconds at least between two instants of a cluster, whose machines are read once a second."""
_HOLD = 5.0
"""Seconds before its first reading and after its last for which a machine counts: machines are not
read at the same instants. Outside these the machine had not joined yet, or had left."""


def use_of(samples: Sequence[MachineSample]) -> Resources:
    """Return the average, minimum and maximum of one machine's readings."""
    columns = {name: [getattr(each, name) for each in samples] for name in _FIELDS}
    return _over_time([each.time for each in samples], columns)


def use_together(machines: Mapping[str, Sequence[MachineSample]]) -> Resources:
    """Return the average, minimum and maximum of a whole cluster: at each instant, percentages are
    means over the machines, and all other figures are sums."""
    series = [_Series(samples) for samples in machines.values() if samples]
    if len(series) == 1:
        return use_of(series[0].samples)
    times = (time for one in series for time in one.times)
    instants: list[float] = []
    for time in sorted(times):
        if not instants or time - instants[-1] >= _APART:
            instants.append(time)
    columns: dict[str, list[float | None]] = {name: [] for name in _FIELDS}
    for instant in instants:
        readings = [reading for one in series if (reading := one.at(instant)) is not None]
        for name, column in columns.items():
            known = [value for r in readings if (value := getattr(r, name)) is not None]
            whole = _mean(known) if name in _MEANS and known else sum(known)
            column.append(whole if known else None)
    return _over_time(instants, columns)


class _Series:
    """One machine's readings; each describes the time since the one before it."""

    def __init__(self, samples: Sequence[MachineSample]) -> None:
        self.samples = samples
        self.times = [each.time for each in samples]
        self._hold = max([_HOLD, *(after - before for before, after in pairwise(self.times[-2:]))])

    def at(self, instant: float) -> MachineSample | None:
        """Return the reading at ``instant``; ``None`` if the machine was not there."""
        place = min(bisect_left(self.times, instant), len(self.times) - 1)
        away = max(self.times[0] - instant, instant - self.times[-1])
        return self.samples[place] if away <= self._hold else None


def _over_time(times: Sequence[float], columns: Mapping[str, Sequence[float | None]]) -> Resources:
    """Average columns; each value is weighted by the time since the one before it.

    The first value's time is unknown but short, so this value counts only if it is alone.
    """
    seconds = [0.0, *(after - before for before, after in pairwise(times))][: len(times)]
    return Resources(**{name: _range(values, seconds) for name, values in columns.items()})


def network_bytes(samples: Sequence[MachineSample]) -> int | None:
    """Return the bytes sent and received between first and last reading; counters may restart."""
    totals = [
        s.network_sent + s.network_received
        for s in samples
        if s.network_sent is not None and s.network_received is not None
    ]
    if len(totals) < 2:
        return None
    return sum(max(0, after - before) for before, after in pairwise(totals))


FEWEST_READINGS = 3


def used_by_others(
    samples: Sequence[MachineSample], cores: int, began: float, ended: float
) -> float | None:
    """Percent of all cores that other programs used between two moments, on average.

    ``cores``: used if the samples do not say how many cores the machine may use.
    """
    during = [s for s in samples if began <= s.time <= ended]
    if len(during) < FEWEST_READINGS or cores < 1:
        return None
    rows = [(s.cpu_percent, s.workers_cpu_percent / max(s.cores or cores, 0.01)) for s in during]
    return _mean([max(0.0, whole - workers) for whole, workers in rows])


def _range(values: Sequence[float | None], seconds: Sequence[float]) -> Range:
    known = [
        (value, time) for value, time in zip(values, seconds, strict=True) if value is not None
    ]
    if not known:
        return Range()
    found, total = [value for value, _ in known], sum(time for _, time in known)
    average = sum(value * time for value, time in known) / total if total else _mean(found)
    return Range(avg=average, min=min(found), max=max(found))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
