"""A probe with real workers on this machine, and its schedule on any link."""

from __future__ import annotations

import socket
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.launch.pool import probe_plan
from phalanx.launch.pool.probe import probe_links
from phalanx.launch.pool.probe_plan import (
    MOST_REPEATS,
    SIZES,
    Schedule,
    all_reached,
    handling,
    names_for,
)
from phalanx.policies.collective_cost import COSTS, LinkSpeed
from phalanx.pool.machine import Machine
from phalanx.pool.measured import CollectiveFigures, Probe

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


latencies = st.floats(1e-6, 0.3)
bandwidths = st.floats(1e3, 1e10)


@given(st.integers(2, 20), latencies, bandwidths, st.floats(2, 120), st.floats(0.2, 1.5), st.data())
def test_a_schedule_keeps_its_budget(
    count: int, latency: float, bandwidth: float, budget: float, truth: float, data: st.DataObject
) -> None:
    """In virtual time, on links where a collective takes ``truth`` times what is predicted."""
    schedule = Schedule(count, LinkSpeed.measured(latency, bandwidth))
    todo = list(schedule.measurements())
    now, done = 0.0, []
    for number, (name, size) in enumerate(todo):
        repeats = schedule.repeats(name, size, budget - now, todo[number + 1 :])
        assert 0 <= repeats <= MOST_REPEATS
        if repeats:
            once = schedule.predicted(name, size) * truth
            now += once * (repeats + 2)
            schedule.learn(name, size, once)
            done.append((name, size))
    assert now <= max(1.5, truth) * budget
    if truth <= 1:
        assert now <= budget + 1e-6


def test_what_does_not_fit_takes_no_repetitions_from_what_does() -> None:
    """Five machines at 200 Mbit/s: not all of 16 MB fit. A single repetition says little."""
    schedule = Schedule(5, LinkSpeed.measured(3e-5, 2.4e7))
    todo = list(schedule.measurements())
    now, repeats = 0.0, {}
    for number, each in enumerate(todo):
        repeats[each] = schedule.repeats(*each, 18.0 - now, todo[number + 1 :])
        now += schedule.predicted(*each) * (repeats[each] + 2) if repeats[each] else 0.0
    assert min(count for (_, size), count in repeats.items() if size < SIZES[-1]) >= 3
    assert repeats["all_reduce.direct", SIZES[-1]] >= 1
    assert 0 in repeats.values()
    assert schedule.repeats("all_reduce.tree", SIZES[-1], 0.01) == 0


def test_handling_is_what_latency_and_bytes_do_not_explain() -> None:
    schedule = Schedule(3, LinkSpeed.measured(1e-3, 1e8))
    figures = []
    for name in names_for(3):
        cost = COSTS[name](3, 64)
        seconds = cost.rounds * schedule.link.latency + cost.bytes / 1e8 + cost.messages * 5e-5
        figures.append(CollectiveFigures(name, 64, seconds, 1.0, 1))
    assert handling(schedule, figures) == pytest.approx(5e-5)
    assert handling(schedule, []) is None


def test_who_reaches_everybody() -> None:
    def pairs(*words: str) -> set[frozenset[str]]:
        return {frozenset(word) for word in words}

    assert all_reached("abc", pairs("ab", "bc", "ac")) == ["a", "b", "c"]
    assert all_reached("abc", pairs("ab", "bc")) == ["a", "b"]
    assert all_reached("abcd", pairs("ab", "ac", "bc", "ad")) == ["a", "b", "c"]
    assert all_reached("ab", pairs()) == ["a"]
