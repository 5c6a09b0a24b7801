"""What the machines' readings add up to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from phalanx.observe.events import MachineSample
from phalanx.observe.summary_fields import Range, Resources


def use_of(samples: Sequence[MachineSample]) -> Resources:
    """Average, least and most of one machine's readings."""
    return Resources(
        cpu_percent=_range([s.cpu_percent for s in samples]),
        memory_bytes=_range([s.memory_bytes for s in samples]),
        network_bytes_per_second=_range([s.network_bytes_per_second for s in samples]),
    )


def use_together(machines: Mapping[str, Sequence[MachineSample]]) -> Resources:
    """Of the whole cluster: CPU is a mean over machines, memory and network are sums."""
    each = [use_of(samples) for samples in machines.values() if samples]
    return Resources(
        cpu_percent=Range(
            avg=_combine([r.cpu_percent.avg for r in each], _mean),
            min=_combine([r.cpu_percent.min for r in each], min),
            max=_combine([r.cpu_percent.max for r in each], max),
        ),
        memory_bytes=_total([r.memory_bytes for r in each]),
        network_bytes_per_second=_total([r.network_bytes_per_second for r in each]),
    )


FEWEST_READINGS = 3


def used_by_others(
    samples: Sequence[MachineSample], cores: int, began: float, ended: float
) -> float | None:
    """Percent of all cores that other programs used between two moments, on average."""
    during = [s for s in samples if began <= s.time <= ended]
    if len(during) < FEWEST_READINGS or cores < 1:
        return None
    return _mean([max(0.0, s.cpu_percent - s.workers_cpu_percent / cores) for s in during])


def _range(values: Sequence[float]) -> Range:
    if not values:
        return Range()
    return Range(avg=_mean(values), min=min(values), max=max(values))


def _total(ranges: Sequence[Range]) -> Range:
    return Range(
        avg=_combine([r.avg for r in ranges], sum),
        min=_combine([r.min for r in ranges], sum),
        max=_combine([r.max for r in ranges], sum),
    )


def _combine(
    values: Sequence[float | None], how: Callable[[Sequence[float]], float]
) -> float | None:
    known = [value for value in values if value is not None]
    return how(known) if known else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
