"""Averages, minima, maxima and sums of the machines' readings."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from phalanx.observe.events.event_types import MachineSample

Window = tuple[float, float]
"""The moments between which readings count."""
ALWAYS = (float("-inf"), float("inf"))
NEVER = (float("inf"), float("-inf"))


class Range(msgspec.Struct, frozen=True, kw_only=True):
    avg: float | None = None
    min: float | None = None
    max: float | None = None
    last: float | None = None


UNKNOWN = Range()


class Resources(msgspec.Struct, kw_only=True):
    """The figures of ``MachineSample``, over time."""

    cpu_percent: Range = UNKNOWN
    memory_bytes: Range = UNKNOWN
    network_bytes_per_second: Range = UNKNOWN
    disk_bytes_per_second: Range = UNKNOWN
    gpu_percent: Range = UNKNOWN
    gpu_memory_bytes: Range = UNKNOWN
    watts: Range = UNKNOWN
    cpu_user: Range = UNKNOWN
    cpu_system: Range = UNKNOWN
    cpu_wait: Range = UNKNOWN
    cpu_steal: Range = UNKNOWN
    cpu_idle: Range = UNKNOWN
    memory_cached: Range = UNKNOWN
    swap_bytes: Range = UNKNOWN
    swap_bytes_per_second: Range = UNKNOWN
    major_faults_per_second: Range = UNKNOWN
    network_received_per_second: Range = UNKNOWN
    network_sent_per_second: Range = UNKNOWN
    disk_read_per_second: Range = UNKNOWN
    disk_written_per_second: Range = UNKNOWN
    pressure_cpu: Range = UNKNOWN
    pressure_memory: Range = UNKNOWN
    pressure_io: Range = UNKNOWN
    throttled_percent: Range = UNKNOWN
    retransmits_per_second: Range = UNKNOWN
    segments_per_second: Range = UNKNOWN


class Before(msgspec.Struct, kw_only=True):
    """What used a machine before the run started its workers there."""

    load: float | None = None
    """Processes that ran or wanted to, over the last minute; null in a container."""
    memory_bytes: int | None = None


class Totals(msgspec.Struct, kw_only=True):
    """What a machine used from its first reading to its last."""

    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    network_received_bytes: int | None = None
    network_sent_bytes: int | None = None


_FIELDS = Resources.__struct_fields__
_MEANS = {n for n in _FIELDS if n.endswith("percent") or n.startswith(("cpu_", "pressure_"))}
"""The figures of which a cluster has the mean, and not the sum."""
_APART = 0.9
"""Seconds at least between two instants of a cluster, whose machines are read once a second."""
_HOLD = 5.0
"""Seconds before its first reading and after its last for which a machine counts: machines are not
read at the same instants. Outside these the machine had not joined yet, or had left."""


def use_of(samples: Sequence[MachineSample], window: Window = ALWAYS) -> Resources:
    """Return the average, minimum, maximum and last of one machine's readings."""
    return use_together({"": samples}, window)


def use_together(
    machines: Mapping[str, Sequence[MachineSample]], window: Window = ALWAYS
) -> Resources:
    """Return the average, minimum, maximum and last of a whole cluster: at each instant,
    percentages are means over the machines, and all other figures are sums."""
    return _over_time(*cluster_columns(machines), window)


def cluster_columns(
    machines: Mapping[str, Sequence[MachineSample]],
) -> tuple[list[float], dict[str, list[float | None]]]:
    """Return instants, and the figures of the whole cluster at each of them."""
    series = [_Series(samples) for samples in machines.values() if samples]
    if len(series) == 1:
        alone = series[0]
        return alone.times, {n: [getattr(each, n) for each in alone.samples] for n in _FIELDS}
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
    return instants, columns


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


def _over_time(
    times: Sequence[float],
    columns: Mapping[str, Sequence[float | None]],
    window: Window,
) -> Resources:
    """Average columns; each value is weighted by the time since the one before it.

    The first value's time is unknown but short, so this value counts only if it is alone. Of a
    window, the values count that are about it for at least half of their time; of a window so
    short that there are none, all that touch it.
    """
    spans = [*((time, time) for time in times[:1]), *pairwise(times)]
    began, ended = window
    seconds = [min(after, ended) - max(before, began) for before, after in spans]
    halves = [(after - before) / 2 for before, after in spans]
    kept = [place for place, half in enumerate(halves) if seconds[place] >= half]
    kept = kept or [place for place, inside in enumerate(seconds) if inside >= 0]
    weights = [seconds[place] for place in kept]
    found = ((name, [values[place] for place in kept]) for name, values in columns.items())
    return Resources(**{name: _range(values, weights) for name, values in found})


def totals_of(samples: Sequence[MachineSample], cores: int) -> Totals:
    """Add up a machine's readings; ``cores``: used if the samples do not say how many it has."""
    return Totals(
        cpu_user_seconds=_core_seconds(samples, "cpu_user", cores),
        cpu_system_seconds=_core_seconds(samples, "cpu_system", cores),
        network_received_bytes=_growth([sample.network_received for sample in samples]),
        network_sent_bytes=_growth([sample.network_sent for sample in samples]),
    )


def _core_seconds(samples: Sequence[MachineSample], kind: str, cores: int) -> float | None:
    parts = [
        percent / 100 * (after.cores or cores) * (after.time - before.time)
        for before, after in pairwise(samples)
        if (percent := getattr(after, kind)) is not None
    ]
    return sum(parts) if parts else None


def _growth(counts: Sequence[int | None]) -> int | None:
    """Return how much a counter has grown, which may restart."""
    known = [count for count in counts if count is not None]
    return sum(max(0, b - a) for a, b in pairwise(known)) if len(known) > 1 else None


def before_of(samples: Sequence[MachineSample]) -> Before:
    first = next(iter(samples), None)
    return Before(load=first.load_before, memory_bytes=first.memory_before) if first else Before()


def network_bytes(samples: Sequence[MachineSample]) -> int | None:
    """Return the bytes sent and received between first and last reading."""
    totals = totals_of(samples, 0)
    if totals.network_received_bytes is None or totals.network_sent_bytes is None:
        return None
    return totals.network_received_bytes + totals.network_sent_bytes


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
    return Range(avg=average, min=min(found), max=max(found), last=found[-1])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
