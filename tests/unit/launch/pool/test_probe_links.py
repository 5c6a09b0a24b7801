"""A probe with real workers, all of them on this machine."""

from __future__ import annotations

import socket
import sys

import pytest

from phalanx.launch.pool import probe_plan
from phalanx.launch.pool.probe import probe_links
from phalanx.pool.machine import Machine
from phalanx.pool.measured import Probe

BARE_PYTHON = sys._base_executable  # type: ignore[attr-defined]  # has no packages


@pytest.fixture(scope="module")
def probe() -> Probe:
    """Two machines that work, one without Phalanx, one that nobody answers for."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        machines = [
            Machine(name="bare", host="here", python=BARE_PYTHON),
            Machine(name="one", host="here"),
            Machine(name="away", host="127.0.0.1", port=port),
            Machine(name="two", host="here"),
        ]
        return probe_links(machines, 2.0)


def test_those_that_answer_are_measured(probe: Probe) -> None:
    assert probe.machines == probe.participants == ["one", "two"]
    for ends in (("one", "two"), ("two", "one")):
        link = probe.link(*ends)
        assert 0 < link.latency < 1
        assert link.bandwidth > 1e6
    assert len(probe.links) == 2


def test_collectives_of_all_sizes_or_a_word_about_them(probe: Probe) -> None:
    names = set(probe_plan.names_for(2))
    wanted = {(name, size) for name in names for size in probe_plan.SIZES}
    timed = {(c.name, c.bytes) for c in probe.collectives}
    assert timed | {(item.what, item.bytes) for item in probe.left_out} == wanted
    assert {name for name, size in timed if size == probe_plan.SIZES[0]} == names
    assert all(c.predicted > 0 for c in probe.collectives)
    assert probe.message_seconds is not None


def test_the_others_are_named_with_a_remedy(probe: Probe) -> None:
    found = {trouble.machines[0]: trouble for trouble in probe.trouble}
    assert set(found) == {"bare", "away"}
    assert "has no module phalanx" in found["bare"].cause
    assert "Install it there" in found["bare"].remedy
    assert found["away"].cause.startswith("away (127.0.0.1:")
    assert "connection refused" in found["away"].cause


def test_how_fast_the_machines_compute(probe: Probe) -> None:
    assert sorted(rates.machine for rates in probe.rates) == ["one", "two"]
    for rates in probe.rates:
        device = rates.devices[0]
        assert (device.name, device.count) == ("CPU", 1)
        assert device.float32 and device.bfloat16 and device.memory
        assert rates.cores >= 1
