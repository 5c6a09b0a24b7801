"""Servers go where the links are best, or where they were asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.plan.servers import Host, place_servers

POOL = [
    Host("alpha", 1e8, 2),
    Host("beta", 1e9, 2),
    Host("gamma", None, 1),
    Host("delta", 1e9, 1),
    Host("spare", 1e10, 0),
]


@pytest.mark.parametrize(
    ("machines", "servers"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (20, 10)]
)
def test_by_default_a_server_for_each_pair_of_machines(machines: int, servers: int) -> None:
    hosts = [Host(f"m{i}", None, 1) for i in range(machines)]
    assert len(place_servers(hosts)) == servers


def test_the_best_links_come_first_then_those_with_fewer_workers() -> None:
    assert place_servers(POOL) == ["delta", "beta"]
    assert place_servers(POOL, 4) == ["delta", "beta", "alpha", "gamma"]


def test_names_are_taken_as_given_also_apart_from_the_workers() -> None:
    assert place_servers(POOL, ["spare", "alpha"]) == ["spare", "alpha"]
    assert place_servers(POOL, "spare") == ["spare"]


def test_more_servers_than_machines_go_round() -> None:
    assert place_servers(POOL[:2], 3) == ["beta", "alpha", "beta"]


@pytest.mark.parametrize("wish", [0, -1, [], ["gama"]])
def test_what_cannot_be_is_refused(wish: int | list[str]) -> None:
    with pytest.raises(InputError):
        place_servers(POOL, wish)


@given(
    st.lists(
        st.tuples(st.none() | st.floats(1e6, 1e11), st.integers(1, 4)), min_size=1, max_size=9
    ),
    st.integers(1, 9),
)
def test_no_measured_link_that_is_left_is_clearly_better(
    links: list[tuple[float | None, int]], n: int
) -> None:
    hosts = [Host(f"m{i}", rate, workers) for i, (rate, workers) in enumerate(links)]
    rates = {host.name: host.bits_per_second or 0.0 for host in hosts}
    taken = place_servers(hosts, min(n, len(hosts)))
    assert len(set(taken)) == len(taken)
    left = rates.keys() - set(taken)
    worst = min(rates[name] for name in taken)
    assert max((rates[name] for name in left), default=0.0) <= 1.2 * worst


def test_noise_of_the_probe_places_no_server() -> None:
    hosts = [Host("a", 9.99e8, 2), Host("b", 9.95e8, 1), Host("c", 5e8, 1)]
    assert place_servers(hosts, 2) == ["b", "a"]
