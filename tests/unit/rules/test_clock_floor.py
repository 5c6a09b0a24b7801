"""The floor that is counted is the lowest clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.rules.admission import AWAY
from phalanx.rules.clock_floor import ClockFloor

clock = st.integers(0, 12)


@given(st.lists(clock, max_size=6), st.data())
def test_it_is_the_lowest_whoever_comes_goes_and_steps(
    present: list[int], data: st.DataObject
) -> None:
    floor = ClockFloor(present)
    assert floor.floor == min(present, default=AWAY)
    for change in data.draw(st.lists(st.sampled_from(["advance", "enter", "leave"]), max_size=40)):
        if change == "enter":
            present.append(data.draw(clock))
            floor.enter(present[-1])
        elif present:
            old = present.pop(data.draw(st.integers(0, len(present) - 1)))
            getattr(floor, change)(old)
            present += [old + 1] if change == "advance" else []
        assert floor.floor == min(present, default=AWAY)


def test_a_long_race_keeps_only_the_values_in_use() -> None:
    floor = ClockFloor([0, 0])
    for step in range(1000):
        floor.advance(step)
        floor.advance(step)
    assert floor.floor == 1000
    assert len(floor._count) == 1
