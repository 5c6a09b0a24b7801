"""Machines of runs and pools: what they do now, over time, and in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_runs import write_run

from phalanx.observe.events.event_types import MachineSample
from phalanx.watch.feed.cluster_view import MOST, Readings
from phalanx.watch.feed.pool_view import PoolFeed
from phalanx.watch.feed.run_feed import RunFeed


def sample(time: float, **more: Any) -> MachineSample:
    known: dict[str, Any] = {
        "cpu_percent": 50.0,
        "memory_bytes": 1 << 30,
        "network_bytes_per_second": 0.0,
        "workers_cpu_percent": 0.0,
        "workers_memory_bytes": 0,
    }
    return MachineSample(time=time, **(known | more))


def test_the_machines_of_a_run(tmp_path: Path) -> None:
    paths = write_run(
        tmp_path, "run", workers=3, machines=("m1", "m2"), gpus=("m2",), steps=200, compute=0.02
    )
    feed = RunFeed(paths)
    while feed.refresh():
        pass
    found = feed.cluster(points=10)
    assert [(m.name, m.cores, m.workers) for m in found.machines] == [
        ("m1", 2, [0, 2]),
        ("m2", 2, [1]),
    ]
    first, second = (m.now for m in found.machines)
    assert first is not None and second is not None
    assert first["received"] == 1e6 and first["gpu"] is None and second["gpu"] == 0.0
    assert found.total["received"] == 2e6
    assert found.total["cpu"] == pytest.approx(((first["cpu"] or 0) + (second["cpu"] or 0)) / 2)
    charts = {chart.name: chart for chart in found.charts}
    assert {"cpu", "memory_bytes", "network_in", "network_out", "disk", "gpu"} == charts.keys()
    assert len(charts["cpu"].x_values) <= 10 and len(charts["gpu"].series) == 1
    assert [row.machine for row in found.strip["cpu"].rows] == ["m1", "m2"]
    assert {machine.state for machine in found.machines} == {"ended"}


def test_readings_are_bounded() -> None:
    readings = Readings()
    for second in range(36_000):
        readings.add(sample(float(second), cpu_percent=float(second)))
    assert len(readings.times) == len(readings.figures) <= MOST
    assert readings.times == [one["cpu"] for one in readings.figures]
    readings.add(sample(0.0))
    assert readings.last is not None and readings.last.time == 35_999.0


def test_the_memory_of_a_machine_is_told_once() -> None:
    readings = Readings()
    readings.add(sample(0.0, memory_total=4 << 30))
    readings.add(sample(1.0))
    assert [one["memory_percent"] for one in readings.figures] == [25.0, 25.0]


def test_a_file_is_read_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "m1.jsonl"
    found = Readings(path)
    assert not found.read()
    for number in range(3):
        with path.open("ab") as file:
            file.write(msgspec.json.encode(sample(float(number))) + b"\n{damaged\n")
        assert found.read() and len(found.times) == number + 1


def test_a_pool_of_idle_machines() -> None:
    pool = PoolFeed()
    assert pool.view().machines == []
    evil = "<b>m2</b>\x1b[2J"
    for second in range(30):
        pool.take("m1", sample(5000.0 + second, cores=8.0, memory_total=8 << 30))
        pool.take(evil, None)
    found = pool.view(points=10)
    assert [(m.name, m.state, m.cores) for m in found.machines] == [
        ("m1", "up", 8.0),
        (evil, "unreachable", None),
    ]
    assert found.machines[0].now is not None and found.machines[1].now is None
    assert found.machines[0].now["memory_percent"] == 12.5
    assert found.charts[0].x_values[0] >= 0.0 and found.charts[0].x_values[-1] < 30.0
    msgspec.json.encode(found)


def test_readings_that_cannot_be() -> None:
    pool = PoolFeed()
    for number, value in enumerate((0.0, -1.7e308, 1.7e308, 5.0)):
        pool.take("m1", sample(value, cpu_percent=1.7e308, memory_bytes=-(10**30), cores=-1.0))
        pool.take(f"m{number}", sample(float(number), network_sent_per_second=1.7e308))
        msgspec.json.encode(pool.view())
