"""Readings of idle machines: an agent on each, its readings, its end, and machines that are not
there."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil
import pytest

from phalanx.cli.watch.pool_readings import readings
from phalanx.observe.events.event_types import MachineSample
from phalanx.pool.machine import Machine

LONG = 60.0


def agents() -> set[int]:
    """The agents that this process has started, also those that are no children any more."""
    children = psutil.Process().children(recursive=True)
    return {one.pid for one in children if "phalanx-agent" in " ".join(one.cmdline())}


def test_machines_are_read_until_the_end(tmp_path: Path) -> None:
    found: dict[str, list[MachineSample | None]] = {"here": [], "gone": []}
    notes: list[str] = []
    enough = threading.Event()

    def take(name: str, sample: MachineSample | None) -> None:
        found[name].append(sample)
        if len(found["here"]) >= 3 and len(found["gone"]) >= 2 and notes:
            enough.set()

    machines = [
        Machine(name="here", host="here", folder=str(tmp_path / "agent")),
        Machine(name="gone", host="127.0.0.1", port=1),
    ]
    with readings(machines, take, notes.append):
        assert enough.wait(LONG)
        assert agents()
    deadline = time.monotonic() + LONG
    while agents() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert agents() == set()
    assert found["here"][0] is None, "it is shown before it answers"
    samples = [each for each in found["here"] if each is not None]
    assert len(samples) >= 2
    assert samples[0].time < samples[1].time
    assert samples[0].cores
    assert found["gone"] == [None] * len(found["gone"])
    assert ["gone" in note for note in notes] == [True], "said once"


@pytest.mark.parametrize("host", ["here", "127.0.0.1"])
def test_the_end_does_not_wait_for_machines(host: str, tmp_path: Path) -> None:
    machine = Machine(name="m", host=host, port=1, folder=str(tmp_path / "agent"))
    with readings([machine], lambda name, sample: None, lambda text: None):
        pass  # while it connects
    deadline = time.monotonic() + LONG
    while agents() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert agents() == set()
