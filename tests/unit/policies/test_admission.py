"""Who may go on, from the clocks of all. Whole races: ``tests/contract/test_properties.py``."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.policies.admission import AWAY, Clocks, Dynamic, Stale, rejoin


def clocks(steps: list[int], times: list[float], intervals: list[float]) -> Clocks:
    return Clocks(steps, times, intervals, [0] * len(steps), min(steps))


@pytest.mark.parametrize(
    ("high", "steps", "times", "intervals", "granted"),
    [
        # The slowest pushes at 13.5; at 13 the fast one, which is 3 ahead, has pushed thrice.
        (20, [5, 2], [10.0, 3.5], [1.0, 10.0], 3),
        (4, [5, 2], [10.0, 3.5], [1.0, 10.0], 2),  # no more than the range allows
        (20, [5, 2], [10.0, 0.1], [8.0, 10.0], 0),  # waiting now is best: it pushes in 0.1
        (20, [5, 2], [10.0, 9.5], [1.0, 1.01], 1),  # hardly faster: one step is enough
        # Both have done 2 steps: the lead shrinks at 14.5, not at 11.5.
        (20, [5, 2, 2], [10.0, 1.5, 4.5], [1.0, 10.0, 10.0], 4),
        (20, [5, 2], [10.0, 3.5], [0.0, 10.0], 0),  # an unknown pace
        (20, [5, 2], [10.0, 3.5], [1.0, 0.0], 0),
    ],
)
def test_so_many_steps_are_granted(
    high: int, steps: list[int], times: list[float], intervals: list[float], granted: int
) -> None:
    assert Dynamic(2, high).decide(0, clocks(steps, times, intervals), 10.0) == granted


def test_a_grant_lasts_until_the_worker_is_within_low_again() -> None:
    rule = Dynamic(2, 8)
    ahead = Clocks([7, 2], [0.0, 0.0], [1.0, 9.0], [3, 0], 2)
    assert rule.decide(0, ahead, 0.0) == 3
    assert rule.admits(0, ahead)
    back = Clocks([4, 2], [0.0, 0.0], [1.0, 9.0], [3, 0], 2)
    assert rule.decide(0, back, 0.0) == 0


def test_a_grant_of_a_wider_range_is_cut_down() -> None:
    """As after a live switch from one range to another."""
    left_over = Clocks([7, 2], [0.0, 0.0], [1.0, 9.0], [99, 0], 2)
    assert not Dynamic(2, 4).admits(0, left_over)
    assert Dynamic(2, 5).admits(0, left_over)


def test_a_wide_range_and_unlike_paces_are_decided_at_once() -> None:
    """Neither the range nor the ratio of the paces may set the amount of work."""
    for intervals in ([1e-6, 10.0], [10.0, 1e-9]):
        grant = Dynamic(0, 1 << 20).decide(0, clocks([1, 0], [0.0, 0.0], intervals), 0.0)
        assert 0 <= grant <= 64


def test_nobody_waits_for_those_who_rest() -> None:
    assert Stale(0).admits(0, clocks([9, AWAY], [0.0, 0.0], [0.0, 0.0]))


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 30), st.just(AWAY)), min_size=1, max_size=8),
    st.integers(0, 30),
    st.integers(0, 30),
    st.data(),
)
def test_coming_back_lowers_no_clock(
    steps: list[int], last: int, newest: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, len(steps) - 1))
    present = [n for i, n in enumerate(steps) if i != rank and n < AWAY]
    steps[rank] = AWAY
    assert rejoin(last, min(steps), newest) == max(last, min(present, default=newest))
