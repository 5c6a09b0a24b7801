"""What collectives cost, and that the cheapest is chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.policies.collective_choice import choose
from phalanx.policies.collective_cost import ALL_REDUCE, COSTS, LinkSpeed


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


@given(size=st.integers(1, 32), count=st.integers(1, 1 << 20))
def test_costs_grow_with_the_message_and_vanish_alone(size: int, count: int) -> None:
    link = LinkSpeed(1e-4, 1e8)
    for name in COSTS:
        assert seconds(name, 1, count, link) == 0.0
        if size > 1:
            assert seconds(name, size, count, link) > seconds(name, size, count - 1, link) > 0.0


def test_costs_of_a_message_by_hand() -> None:
    link = LinkSpeed(latency=0.001, bandwidth=1e6, overhead=0.0)
    assert seconds("all_gather", 4, 1000, link) == pytest.approx(0.002 + 0.003)
    assert seconds("all_reduce.direct", 2, 1000, link) == pytest.approx(0.002)
    assert seconds("all_reduce.ring", 4, 1000, link) == pytest.approx(0.006 + 0.0015)
    assert seconds("all_reduce.tree", 4, 1000, link) == pytest.approx(4 * 0.002)
    assert seconds("all_reduce.butterfly", 4, 1000, link) == pytest.approx(0.004 + 0.0015)
