"""The time of a probe: arithmetic that keeps a budget on any link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.launch.pool.probe_plan import (
    MOST_REPEATS,
    SIZES,
    Schedule,
    all_reached,
    handling,
    names_for,
)
from phalanx.policies.collective_cost import COSTS, LinkSpeed
from phalanx.pool.measured import CollectiveFigures

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
    assert schedule.repeats("broadcast", SIZES[-1], 0.01) == 0


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
