"""Samples of machines, and their averages and extremes over a cluster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.machines.monitor import SampleReader, ToldSample, sample_of
from phalanx.observe.machines.resources import (
    before_of,
    totals_of,
    use_of,
    use_together,
    used_by_others,
)

TOLD: dict[str, Any] = {
    "tell": "sample",
    "time": 100.0,
    "cpu_percent": 12.5,
    "memory_bytes": 1000,
    "network_bytes_per_second": 5.0,
    "workers_cpu_percent": 99.0,
    "workers_memory_bytes": 10,
    "network_received": 7,
    "network_sent": 8,
    "disk_bytes_per_second": 3.0,
    "gpu_percent": None,
    "gpu_memory_bytes": None,
    "gpu_watts": 100.0,
    "cpu_watts": 20.0,
    "joules": 1.0,
    "cpu_source": "cgroup",
}


def test_a_sample_on_the_clock_of_the_run() -> None:
    sample = sample_of(TOLD, clock_offset=-40.0)
    assert (sample.time, sample.watts, sample.gpu_percent) == (60.0, 120.0, None)
    assert (sample.network_received, sample.cpu_source) == (7, "cgroup")
    assert msgspec.json.decode(msgspec.json.encode(sample), type=MachineSample) == sample


def test_what_is_no_sample_is_passed_over() -> None:
    reader = SampleReader()
    with pytest.raises(msgspec.ValidationError):
        sample_of({"time": "now"})
    assert reader.read({"time": "now"}) is None
    assert reader.read(TOLD) is not None
    assert reader.read(TOLD) is None, "a second line of one moment"
    assert reader.read({**TOLD, "time": 101.0}) is not None


def test_another_reader_goes_on_by_the_clock_of_the_machine() -> None:
    first = SampleReader().read(TOLD, clock_offset=-40.0)
    assert first is not None and (first.time, first.at) == (60.0, 100.0)
    line = msgspec.json.encode(first)
    assert msgspec.json.decode(line, type=ToldSample) == first
    assert msgspec.json.decode(line, type=MachineSample).time == 60.0, "as all files are read"
    reader = SampleReader()
    reader.go_on_after(first)
    assert reader.read(TOLD, clock_offset=5.0) is None, "another clock makes it no other sample"
    later = reader.read({**TOLD, "time": 100.5}, clock_offset=-40.0)
    assert later is not None and later.time == 60.5


def sample(time: float, cpu: float, memory: int = 1, watts: float | None = None) -> MachineSample:
    return MachineSample(
        time=time,
        cpu_percent=cpu,
        memory_bytes=memory,
        watts=watts,
        network_bytes_per_second=0.0,
        workers_cpu_percent=0.0,
        workers_memory_bytes=0,
    )


def test_a_reading_counts_for_the_time_it_tells_of() -> None:
    use = use_of([sample(0.2, 90.0), sample(1.2, 10.0), sample(4.2, 50.0)]).cpu_percent
    assert use.avg == pytest.approx((1 * 10 + 3 * 50) / 4)
    assert (use.min, use.max) == (10.0, 90.0)


def test_workers_that_use_all_of_a_quota_leave_nothing_to_others() -> None:
    """A fifth of a core, of which the machine's own percentages are."""
    busy = {"workers_cpu_percent": 20.0, "cores": 0.2}
    samples = [msgspec.structs.replace(sample(second, 100.0), **busy) for second in range(9)]
    assert used_by_others(samples, 1, 0.0, 9.0) == pytest.approx(0.0)
    unlimited = [msgspec.structs.replace(one, cores=None) for one in samples]
    assert used_by_others(unlimited, 1, 0.0, 9.0) == pytest.approx(80.0)


def series(began: float, cpu: list[float], memory: list[int]) -> list[MachineSample]:
    """One reading a second."""
    return [
        sample(began + place, *pair) for place, pair in enumerate(zip(cpu, memory, strict=True))
    ]


@pytest.mark.parametrize("late", [0.0, 0.3, -0.4])
def test_extremes_of_a_cluster_are_those_of_its_sum_or_mean(late: float) -> None:
    """Each machine goes from 0 to 100 percent, and the cluster never does; whichever is read first,
    a reading tells of the second before it."""
    use = use_together(
        {
            "a": series(1.0, [100, 0, 100, 0, 100], [10, 20, 30, 40, 50]),
            "b": series(1.0 + late, [0, 100, 0, 100, 0], [50, 40, 30, 20, 20]),
        }
    )
    cpu, memory = use.cpu_percent, use.memory_bytes
    assert (cpu.avg, cpu.min, cpu.max) == (50.0, 50.0, 50.0)
    assert (memory.min, memory.max) == (60, 70)
    assert memory.avg == pytest.approx((60 + 60 + 60 + 70) / 4)


def test_a_machine_counts_while_it_is_there() -> None:
    always, guest = [10] * 60, [100] * 20
    use = use_together({"a": series(0.0, [50] * 60, always), "b": series(20.0, [100] * 20, guest)})
    assert (use.memory_bytes.min, use.memory_bytes.max) == (10, 110)
    assert (use.cpu_percent.min, use.cpu_percent.max) == (50.0, 75.0)
    one_after_another = use_together(
        {"a": series(0.0, [1] * 30, [10] * 30), "b": series(60.0, [1] * 30, [10] * 30)}
    )
    assert one_after_another.memory_bytes == use_of(series(0.0, [1] * 9, [10] * 9)).memory_bytes


def test_a_cluster_of_one_is_that_machine_and_what_no_machine_counts_is_unknown() -> None:
    alone = [sample(0.2, 90.0), sample(1.2, 10.0), sample(1.5, 50.0)]
    assert use_together({"a": alone, "b": []}) == use_of(alone)
    use = use_together({"a": [sample(0.0, 1.0, watts=20.0)], "b": [sample(0.1, 1.0)]})
    assert (use.watts.avg, use.watts.max, use.gpu_percent.max) == (20.0, 20.0, None)
    assert use_together({}).cpu_percent.max is None


def test_training_alone_is_what_the_readings_tell_of_it() -> None:
    """Readings at 1, 2 … 6; one counts that is about the training for half of its time or more."""
    samples = series(1.0, [5, 10, 20, 60, 90, 95], [1] * 6)
    cpu = use_of(samples, (2.4, 4.7)).cpu_percent
    assert (cpu.min, cpu.max, cpu.last) == (20.0, 90.0, 90.0)
    assert cpu.avg == pytest.approx((0.6 * 20 + 1.0 * 60 + 0.7 * 90) / 2.3)
    whole = use_of(samples).cpu_percent
    assert (whole.min, whole.max, whole.last) == (5.0, 95.0, 95.0)
    short = use_of(samples, (3.2, 3.4)).cpu_percent
    assert (short.avg, short.min, short.max) == (60.0, 60.0, 60.0), "the only one that is about it"
    both = use_together({"a": samples, "b": series(1.0, [95] * 6, [3] * 6)}, (2.4, 4.7))
    assert (both.cpu_percent.min, both.cpu_percent.max) == ((20 + 95) / 2, (90 + 95) / 2)
    assert (both.memory_bytes.min, both.memory_bytes.max) == (4, 4)


def test_each_figure_of_a_cluster_of_nine() -> None:
    """Machine m has m percent user and 2m system, receives 10m and sends 100m bytes a second."""
    machines = {}
    for m in range(1, 10):
        machines[f"m{m}"] = [
            msgspec.structs.replace(
                sample(float(second), 3.0 * m),
                cpu_user=1.0 * m,
                cpu_system=2.0 * m,
                cpu_wait=1.0,
                cores=float(m),
                network_received=10 * m * second,
                network_sent=100 * m * second,
                network_received_per_second=10.0 * m,
                network_sent_per_second=100.0 * m,
                throttled_percent=50.0 if second == 3 else 0.0,
                swap_bytes=second,
                load_before=0.5 if second == 0 else None,
                memory_before=7 if second == 0 else None,
            )
            for second in range(6)
        ]
    use = use_together(machines)
    assert (use.cpu_user.avg, use.cpu_system.avg, use.cpu_percent.avg) == (5.0, 10.0, 15.0)
    assert (use.cpu_idle.avg, use.cpu_steal.avg) == (100.0 - 15.0 - 1.0, None)
    assert (use.network_received_per_second.avg, use.network_sent_per_second.max) == (450, 4500)
    throttled = use.throttled_percent
    assert (throttled.avg, throttled.min, throttled.max) == (pytest.approx(10.0), 0.0, 50.0)
    assert (use.swap_bytes.min, use.swap_bytes.max, use.swap_bytes.last) == (0, 45, 45)
    totals = [totals_of(samples, 1) for samples in machines.values()]
    assert sum(one.network_received_bytes or 0 for one in totals) == 450 * 5
    assert sum(one.network_sent_bytes or 0 for one in totals) == 4500 * 5
    squares = sum(m * m for m in range(1, 10))
    assert sum(one.cpu_user_seconds or 0 for one in totals) == pytest.approx(squares * 0.05)
    assert sum(one.cpu_system_seconds or 0 for one in totals) == pytest.approx(squares * 0.1)
    before = before_of(machines["m1"])
    assert (before.load, before.memory_bytes, before_of([]).load) == (0.5, 7, None)
