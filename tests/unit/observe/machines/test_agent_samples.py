"""What an agent tells, as samples of a run; old files are read as before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.machines.monitor import SampleReader, ToldSample, sample_of

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
