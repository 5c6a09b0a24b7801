"""Many workers are admitted as few are: against the plain rule, which looks at each in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.policies import admission
from phalanx.policies.admission import AWAY, HORIZON, Clocks, Dynamic, Stale

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


@settings(deadline=None, max_examples=400)
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
