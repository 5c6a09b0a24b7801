from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.machines import monitor
from phalanx.observe.machines.monitor import Monitor


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "PERIOD", 0.05)
    monkeypatch.setattr(monitor, "FIRST", 0.05)


def collect(
    path: Path, count: int = 1, until: Callable[[MachineSample], bool] = bool
) -> list[MachineSample]:
    """At least ``count`` samples, and one of the kind; the processor is busy meanwhile."""
    samples: list[MachineSample] = []
    deadline = time.monotonic() + 20
    while len(samples) < count or not any(map(until, samples)):
        assert time.monotonic() < deadline, samples
        lines = path.read_bytes().splitlines() if path.exists() else []
        samples = [msgspec.json.decode(line, type=MachineSample) for line in lines]
    return samples


def test_samples_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "here.jsonl"
    watching = Monitor("here", path, lambda: [os.getpid(), 999_999_999])
    watching.start()
    samples = collect(path, 3, until=lambda sample: sample.workers_cpu_percent > 0)
    watching.stop()
    written = [
        msgspec.json.decode(line, type=MachineSample) for line in path.read_bytes().splitlines()
    ]
    assert written[: len(samples)] == samples
    assert all(a.time < b.time for a, b in pairwise(written))
    for sample in written:
        assert 0 <= sample.cpu_percent <= 100
        assert sample.network_bytes_per_second >= 0
        assert sample.cpu_user is not None and sample.cpu_system is not None
        kinds = sample.cpu_user + sample.cpu_system + (sample.cpu_steal or 0.0)
        if sample.cpu_source == "kernel":
            assert min(100.0, kinds) == pytest.approx(sample.cpu_percent, abs=0.1)
        assert sample.network_received_per_second is not None
        assert (sample.memory_before is not None) == (sample is written[0])
        assert 0 < sample.workers_memory_bytes <= sample.memory_bytes * 2
    size = path.stat().st_size
    time.sleep(0.15)
    assert path.stat().st_size == size


def wait_for_end(name: str) -> None:
    """Until the thread of a monitor has ended by itself."""
    for thread in threading.enumerate():
        if thread.name == f"phalanx-monitor-{name}":
            thread.join(20)
            assert not thread.is_alive()


def test_an_error_ends_the_samples_and_nothing_else(tmp_path: Path) -> None:
    readings = iter([[os.getpid()], [os.getpid()]])  # then StopIteration, in its thread
    path = tmp_path / "here.jsonl"
    watching = Monitor("failing", path, lambda: next(readings))
    watching.start()
    wait_for_end("failing")
    assert len(path.read_bytes().splitlines()) == 1
    watching.stop()


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    watching = Monitor("unwritable", tmp_path / "no" / "folder", list)
    watching.start()
    wait_for_end("unwritable")
    assert list(tmp_path.iterdir()) == []
    watching.stop()


def test_a_monitor_that_was_stopped_before_it_began_reads_nothing(tmp_path: Path) -> None:
    """A run that fails early stops monitors that it has not started."""
    path = tmp_path / "here.jsonl"
    watching = Monitor("early", path, list)
    watching.stop()
    watching.start()
    wait_for_end("early")
    assert path.read_bytes() == b""
