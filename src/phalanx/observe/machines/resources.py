"""What the machines' readings add up to."""

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
"""Seconds that a machine counts before its first reading and after its last: not all are read at
the same instants, but one that came later, or left, was not there."""


def use_of(samples: Sequence[MachineSample]) -> Resources:
    """Average, least and most of one machine's readings."""
    columns = {name: [getattr(each, name) for each in samples] for name in _FIELDS}
    return _over_time([each.time for each in samples], columns)


def use_together(machines: Mapping[str, Sequence[MachineSample]]) -> Resources:
    """Average, least and most of a whole cluster: at each instant, percentages are means over the
    machines, and all else are sums."""
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
    """One machine's readings, each of which tells of the time since the one before it."""

    def __init__(self, samples: Sequence[MachineSample]) -> None:
        self.samples = samples
        self.times = [each.time for each in samples]
        self._hold = max([_HOLD, *(after - before for before, after in pairwise(self.times[-2:]))])

    def at(self, instant: float) -> MachineSample | None:
        """``None`` where the machine was not there."""
        place = min(bisect_left(self.times, instant), len(self.times) - 1)
        away = max(self.times[0] - instant, instant - self.times[-1])
        return self.samples[place] if away <= self._hold else None


def _over_time(times: Sequence[float], columns: Mapping[str, Sequence[float | None]]) -> Resources:
    """A value counts in the average for the time since the one before it.

    How long the first one tells of is not known; it is soon taken, so counts only if it is alone.
    """
    seconds = [0.0, *(after - before for before, after in pairwise(times))][: len(times)]
    return Resources(**{name: _range(values, seconds) for name, values in columns.items()})


def network_bytes(samples: Sequence[MachineSample]) -> int | None:
    """Sent and received between the first reading and the last; a counter may have begun anew."""
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

    ``cores``: of a machine whose samples do not say how many it may use.
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
