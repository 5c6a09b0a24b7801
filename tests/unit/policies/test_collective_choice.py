"""Which collective is the cheapest, who steps together, and shares that end together."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.policies.collective_choice import choose
from phalanx.policies.collective_cost import ALL_REDUCE, COSTS, LinkSpeed
from phalanx.policies.fitting_shares import fitting_shares
from phalanx.policies.grouping import Team, by_machine, by_size, by_speed


def seconds(name: str, size: int, count: float, link: LinkSpeed) -> float:
    return COSTS[name](size, count).seconds(link)


def test_choice_by_size_number_and_latency() -> None:
    assert choose(None, 2, 10, None) == choose(None, 2, 1 << 30, 1.0) == "direct"
    assert choose("ring", 2, 10, None) == "ring"
    assert choose(None, 4, 64 << 20, 1e-4) == "direct"
    assert choose(None, 12, 64 << 20, 1e-4) == "ring"
    assert choose(None, 16, 64 << 20, 1e-4) == "butterfly"
    assert choose(None, 16, 100, 1e-4) in ("tree", "butterfly")
    assert choose(None, 8, 1000, 1e-6) == "butterfly"
    with pytest.raises(InputError, match="star"):
        choose("star", 4, 10, None)


@given(
    size=st.integers(3, 20),
    count=st.integers(0, 1 << 28),
    latency=st.floats(1e-6, 1e-1),
)
def test_the_choice_is_never_beaten_by_the_others_it_may_take(
    size: int, count: int, latency: float
) -> None:
    chosen = choose(None, size, count, latency)
    link = LinkSpeed(latency, 125e6)
    others = [name for name in ALL_REDUCE if name != "direct" or size <= 8]
    best = min(seconds(f"all_reduce.{name}", size, count, link) for name in others)
    assert seconds(f"all_reduce.{chosen}", size, count, link) == best


def test_costs_of_a_message_by_hand() -> None:
    link = LinkSpeed(latency=0.001, bandwidth=1e6, overhead=0.0)
    assert seconds("all_gather", 4, 1000, link) == pytest.approx(0.002 + 0.003)
    assert seconds("all_reduce.direct", 2, 1000, link) == pytest.approx(0.002)
    assert seconds("all_reduce.ring", 4, 1000, link) == pytest.approx(0.006 + 0.0015)
    assert seconds("all_reduce.tree", 4, 1000, link) == pytest.approx(4 * 0.002)
    assert seconds("all_reduce.butterfly", 4, 1000, link) == pytest.approx(0.004 + 0.0015)


speeds_of_workers = st.lists(st.one_of(st.just(0.0), st.floats(0.1, 1e6)), min_size=1, max_size=12)


def assert_each_once(teams: list[Team], workers: int) -> None:
    assert sorted(itertools.chain(*teams)) == list(range(workers))
    assert all(teams), "no team is empty"
    assert teams == sorted(tuple(sorted(team)) for team in teams)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 50))
def test_by_size_cuts_consecutive_ranks(workers: int, size: int) -> None:
    teams = by_size(workers, size)
    assert_each_once(teams, workers)
    assert all(len(team) == size for team in teams[:-1])
    assert len(teams[-1]) <= size


@settings(deadline=None)
@given(st.lists(st.sampled_from(["alpha", "beta", "gamma"]), min_size=1, max_size=12))
def test_by_machine_has_one_team_for_each_machine(names: list[str]) -> None:
    teams = by_machine(names)
    assert_each_once(teams, len(names))
    assert [{names[rank] for rank in team} for team in teams] == [{n} for n in dict.fromkeys(names)]


@settings(deadline=None)
@given(speeds_of_workers, st.one_of(st.none(), st.integers(1, 5)))
def test_by_speed_joins_only_workers_of_like_speed(speeds: list[float], size: int | None) -> None:
    teams = by_speed(speeds, size)
    assert_each_once(teams, len(speeds))
    for team in teams:
        assert len(team) <= (size or len(speeds))
        assert len(team) == 1 or all(speeds[rank] > 0.0 for rank in team)
        ordered = sorted(speeds[rank] for rank in team)
        assert all(fast <= 1.25 * slow for slow, fast in itertools.pairwise(ordered))


def test_examples() -> None:
    assert by_size(5, 2) == [(0, 1), (2, 3), (4,)]
    assert by_machine(["b", "a", "b"]) == [(0, 2), (1,)]
    assert by_speed([100, 30, 90, 0, 28, 95]) == [(0, 2, 5), (1, 4), (3,)]
    assert by_speed([100, 30, 90, 0, 28, 95], size=2) == [(0, 5), (1, 4), (2,), (3,)]


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.floats(0, 0.1), st.floats(1e-5, 0.1)), min_size=1, max_size=8),
    st.floats(1, 1e4),
)
def test_fitting_shares_sum_up_and_end_together(
    costs: list[tuple[float, float]], batch: float
) -> None:
    found = fitting_shares(costs, batch)
    assert sum(found) == pytest.approx(batch)
    ends = [
        fixed + each * n for (fixed, each), n in zip(costs, found, strict=True) if n > 1e-6 * batch
    ]
    assert max(ends) == pytest.approx(min(ends), rel=1e-3)
