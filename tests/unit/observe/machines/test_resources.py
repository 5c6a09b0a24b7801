"""Averages of readings that tell of unequal times."""

from __future__ import annotations

import pytest

from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.machines.resources import use_of


def sample(time: float, cpu: float) -> MachineSample:
    return MachineSample(
        time=time,
        cpu_percent=cpu,
        memory_bytes=1,
        network_bytes_per_second=0.0,
        workers_cpu_percent=0.0,
        workers_memory_bytes=0,
    )


def test_a_reading_counts_for_the_time_it_tells_of() -> None:
    use = use_of([sample(0.2, 90.0), sample(1.2, 10.0), sample(4.2, 50.0)]).cpu_percent
    assert use.avg == pytest.approx((1 * 10 + 3 * 50) / 4)
    assert (use.min, use.max) == (10.0, 90.0)


def test_one_reading_and_none() -> None:
    assert use_of([sample(0.2, 90.0)]).cpu_percent.avg == 90.0
    assert use_of([]).cpu_percent.avg is None
