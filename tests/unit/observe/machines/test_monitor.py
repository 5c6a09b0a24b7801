from __future__ import annotations

import os
import threading
import time
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
    monkeypatch.setattr(monitor, "_FIRST", 0.05)


def collect(watching: Monitor, count: int) -> list[MachineSample]:
    samples: list[MachineSample] = []
    deadline = time.monotonic() + 20
    while len(samples) < count and time.monotonic() < deadline:
        samples += watching.take()
        time.sleep(0.01)
    return samples


def test_samples_reach_the_file_and_the_taker(tmp_path: Path) -> None:
    path = tmp_path / "here.jsonl"
    watching = Monitor("here", path, lambda: [os.getpid(), 999_999_999])
    watching.start()
    samples = collect(watching, 3)
    watching.stop()
    written = [
        msgspec.json.decode(line, type=MachineSample) for line in path.read_bytes().splitlines()
    ]
    assert len(samples) >= 3 and written[: len(samples)] == samples
    assert all(a.time < b.time for a, b in pairwise(written))
    for sample in written:
        assert 0 <= sample.cpu_percent <= 100
        assert sample.network_bytes_per_second >= 0
        assert 0 < sample.workers_memory_bytes <= sample.memory_bytes * 2
    size = path.stat().st_size
    time.sleep(0.15)
    assert path.stat().st_size == size


def test_its_errors_harm_nobody(tmp_path: Path) -> None:
    failed = threading.Event()

    def broken() -> list[int]:
        failed.set()
        raise RuntimeError

    watching = Monitor("here", tmp_path / "here.jsonl", broken)
    watching.start()
    assert failed.wait(20)
    watching.stop()
    assert watching.take() == []
    unwritable = Monitor("here", tmp_path / "no" / "folder", list)
    unwritable.start()
    unwritable.stop()
    assert unwritable.take() == []


def test_stop_without_start(tmp_path: Path) -> None:
    Monitor("here", tmp_path / "here.jsonl", list).stop()
