"""Who may go on, from the clocks of all. Whole races: ``tests/contract/test_properties.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.policies import admission
from phalanx.policies.admission import AWAY, HORIZON, Clocks, Dynamic, Stale, rejoin


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


seconds = st.one_of(st.floats(1e-3, 50.0), st.sampled_from([0.1, 0.25, 1.0, 7.0]))


@st.composite
def random_clocks(draw: st.DrawFn) -> Clocks:
    """Of 1 to 8 workers, or of many that are like one of 1 to 8."""
    kinds = draw(st.integers(1, 8))
    copies = draw(st.sampled_from([1, 64 // kinds + 1]))
    step = st.one_of(st.integers(0, 12), st.sampled_from([0, 12, AWAY]))
    pace = st.one_of(seconds, seconds, seconds, st.just(0.0)) if draw(st.booleans()) else seconds
    steps, times, intervals, grants = (
        draw(st.lists(one, min_size=kinds, max_size=kinds)) * copies
        for one in (step, st.floats(0.0, 100.0), pace, st.integers(-1, 9))
    )
    return Clocks(steps, times, intervals, grants, min(steps))


@settings(deadline=None, max_examples=150)
@given(random_clocks(), st.integers(0, 4), st.integers(0, 20), st.floats(0.0, 120.0), st.data())
def test_they_are_decided_as_by_the_plain_rule(
    clocks: Clocks, low: int, width: int, now: float, data: st.DataObject
) -> None:
    present = [rank for rank, steps in enumerate(clocks.steps) if steps < AWAY]
    if not present:
        return
    rank, rule = data.draw(st.sampled_from(present)), Dynamic(low, low + width)
    expected = list(predict(rank, clocks, now))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "_predict", predict)
        granted = rule.decide(rank, clocks, now)
    assert list(admission._predict(rank, clocks, now)) == expected
    assert rule.decide(rank, clocks, now) == granted
    assert Stale(low).admits(rank, clocks) == (clocks.steps[rank] - min(clocks.steps) <= low)


def predict(rank: int, clocks: Clocks, now: float) -> Iterator[tuple[int, float]]:
    """At its coming pushes if it never waited: its lead, and the time until that shrinks."""
    slowest, own = min(clocks.steps), clocks.intervals[rank]
    holders = [i for i, steps in enumerate(clocks.steps) if steps < clocks.steps[rank]]
    if own <= 0.0 or any(clocks.intervals[i] <= 0.0 for i in holders):
        return
    risen, lead = 0, clocks.steps[rank] - slowest
    for push in range(HORIZON):
        moment = now + push * own
        while risen < lead + push:
            following = moment_of(slowest + risen + 1, holders, clocks, now)
            if following >= moment:
                yield lead + push - risen, following - moment
                break
            risen += 1
        else:
            yield 0, 0.0  # the slowest has caught up


def moment_of(floor: int, holders: list[int], clocks: Clocks, now: float) -> float:
    """When all ``holders`` will have done ``floor`` steps."""
    latest = now
    for i in holders:
        if (missing := floor - clocks.steps[i]) > 0:
            interval = clocks.intervals[i]
            first = max(clocks.times[i] + interval, now)
            latest = max(latest, first + (missing - 1) * interval)
    return latest
