"""Who steps together."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.policies.grouping import Team, by_machine, by_size, by_speed

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
