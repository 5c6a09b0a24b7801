"""What the machines' readings add up to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.summary.summary_fields import Range, Resources

_FIELDS = Resources.__struct_fields__
_MEANS = ("cpu_percent", "gpu_percent")


def use_of(samples: Sequence[MachineSample]) -> Resources:
    """Average, least and most of one machine's readings.

    A reading tells of the time since the one before it, and counts for that long in the average.
    How long the first one tells of is not known; it is soon taken, so counts only if it is alone.
    """
    seconds = [0.0, *(after.time - before.time for before, after in pairwise(samples))]
    seconds = seconds[: len(samples)]
    return Resources(**{name: _range_over(samples, seconds, name) for name in _FIELDS})


def use_together(machines: Mapping[str, Sequence[MachineSample]]) -> Resources:
    """Of the whole cluster: percentages are means over machines, all else are sums."""
    each = [use_of(samples) for samples in machines.values() if samples]
    found = {name: [getattr(use, name) for use in each] for name in _FIELDS}
    return Resources(
        **{n: _overall(parts) if n in _MEANS else _total(parts) for n, parts in found.items()}
    )


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
    """Percent of all cores that other programs used between two moments, on average."""
    during = [s for s in samples if began <= s.time <= ended]
    if len(during) < FEWEST_READINGS or cores < 1:
        return None
    return _mean([max(0.0, s.cpu_percent - s.workers_cpu_percent / cores) for s in during])


def _range_over(samples: Sequence[MachineSample], seconds: Sequence[float], name: str) -> Range:
    known = [
        (value, time)
        for sample, time in zip(samples, seconds, strict=True)
        if (value := getattr(sample, name)) is not None
    ]
    if not known:
        return Range()
    values, times = zip(*known, strict=True)
    total = sum(times)
    average = sum(value * time for value, time in known) / total if total else _mean(values)
    return Range(avg=average, min=min(values), max=max(values))


def _overall(ranges: Sequence[Range]) -> Range:
    return Range(
        avg=_combine([r.avg for r in ranges], _mean),
        min=_combine([r.min for r in ranges], min),
        max=_combine([r.max for r in ranges], max),
    )


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
