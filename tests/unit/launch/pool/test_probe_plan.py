"""The time of a probe: arithmetic that keeps a budget on any link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.launch.pool.probe_plan import (
    MOST_REPEATS,
    PAIRS_SHARE,
    SIZES,
    Schedule,
    all_reached,
    handling,
    names_for,
    pair_seconds,
)
from phalanx.policies.collective_cost import COSTS, LinkSpeed
from phalanx.pool.measured import CollectiveFigures

latencies = st.floats(1e-6, 0.3)
bandwidths = st.floats(1e3, 1e10)


@given(st.floats(2, 3600), st.integers(1, 190))
def test_pairs_keep_their_share(budget: float, pairs: int) -> None:
    assert pair_seconds(budget, pairs) * pairs <= budget * PAIRS_SHARE + 1e-9


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


def test_those_of_the_same_size_keep_a_repetition_each() -> None:
    schedule = Schedule(3, LinkSpeed.measured(3e-5, 1.2e8), sizes=SIZES[-1:])
    todo = list(schedule.measurements())
    least, now = sum(schedule.least(*each) for each in todo), 0.0
    for number, each in enumerate(todo):
        count = schedule.repeats(*each, least * 1.01 - now, todo[number + 1 :])
        assert count >= 1
        now += schedule.predicted(*each) * (count + 2)


def test_what_was_slow_is_expected_to_be() -> None:
    schedule = Schedule(2, LinkSpeed.measured(1e-4, 1e8))
    before = schedule.expected("all_reduce.ring", 4096)
    schedule.learn("all_reduce.ring", 64, schedule.predicted("all_reduce.ring", 64) + 0.5)
    assert schedule.expected("all_reduce.ring", 4096) == pytest.approx(before + 0.5)
    schedule.learn("all_reduce.ring", 4096, 0.0)
    assert schedule.expected("all_reduce.ring", 1 << 20) == schedule.predicted(
        "all_reduce.ring", 1 << 20
    )


def test_every_collective_has_a_formula_and_few_names_need_few_machines() -> None:
    assert set(names_for(3)) <= COSTS.keys()
    assert set(names_for(3)) - set(names_for(20)) == {"all_reduce.direct"}


@given(latencies, bandwidths)
def test_one_small_message_costs_half_a_round_trip(latency: float, bandwidth: float) -> None:
    link = LinkSpeed.measured(latency, bandwidth)
    assert COSTS["all_reduce.direct"](2, 0).seconds(link) == pytest.approx(latency)


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
