"""Leaving for a straggler, and coming back."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.policies.straggler_policy import COOL_DOWN, StragglerPolicy, Verdict

crews = st.lists(st.floats(10.0, 1e4), min_size=1, max_size=6)


class Watch:
    """Feeds a policy one observation a second."""

    def __init__(self, usual: list[float], policy: StragglerPolicy | None = None) -> None:
        self.usual, self.policy = usual, policy or StragglerPolicy(len(usual))
        self.now = 0.0

    def see(self, *factors: float) -> Verdict | None:
        """Each worker at its factor of the usual speed; those not given at 1."""
        self.now += 1.0
        padded = [*factors, *[1.0] * (len(self.usual) - len(factors))]
        speeds = [usual * factor for usual, factor in zip(self.usual, padded, strict=True)]
        return self.policy.observe(speeds, self.now)

    def verdicts(self, count: int, *factors: float) -> list[Verdict | None]:
        return [self.see(*factors) for _ in range(count)]


def first(verdicts: list[Verdict | None]) -> int | None:
    """At which observation, from 1, there is a verdict."""
    return next((i for i, v in enumerate(verdicts, 1) if v is not None), None)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.floats(0.0, 1e3), min_size=3, max_size=3), max_size=120))
def test_it_leaves_and_returns_in_turn_and_not_too_often(rows: list[list[float]]) -> None:
    policy = StragglerPolicy(3)
    said = [(i, v) for i, row in enumerate(rows) if (v := policy.observe(row, float(i)))]
    assert [v for _, v in said] == (["leave", "return"] * len(said))[: len(said)]
    assert all(b - a > COOL_DOWN for (a, _), (b, _) in itertools.pairwise(said))
    assert policy.away == (len(said) % 2 == 1)


@settings(deadline=None, max_examples=40)
@given(crews, st.data())
def test_noise_of_fifteen_percent_is_no_straggler(usual: list[float], data: st.DataObject) -> None:
    noise = st.lists(st.floats(0.85, 1.15), min_size=len(usual), max_size=len(usual))
    watch = Watch(usual)
    assert all(watch.see(*data.draw(noise)) is None for _ in range(25))


@settings(deadline=None, max_examples=40)
@given(crews, st.data())
def test_a_slowdown_is_answered_at_the_third_observation(
    usual: list[float], data: st.DataObject
) -> None:
    """To a quarter, in noise of 15 %; the recovery at the fifth, in noise of 8 %."""
    noisy, calm = st.floats(0.85, 1.15), st.floats(0.92, 1.08)
    watch = Watch(usual)
    for _ in range(12):
        watch.see(*[data.draw(calm) for _ in usual])
    slow = [watch.see(0.25 * data.draw(noisy)) for _ in range(3)]
    assert slow == [None, None, "leave"]
    assert set(watch.verdicts(COOL_DOWN, 0.25)) == {None}
    back = [watch.see(*[data.draw(calm) for _ in usual]) for _ in range(5)]
    assert back == [None, None, None, None, "return"]


def test_a_slowdown_right_after_a_return_waits_for_the_cool_down() -> None:
    watch = Watch([100.0, 100.0])
    watch.verdicts(10)
    assert first(watch.verdicts(3, 0.25)) == 3
    watch.verdicts(10, 0.25)
    assert first(watch.verdicts(5)) == 5
    assert first(watch.verdicts(20, 0.25)) == COOL_DOWN + 1


def test_a_worker_that_is_always_slow_is_no_straggler() -> None:
    watch = Watch([10.0, 1000.0])
    assert set(watch.verdicts(100)) == {None}


def test_it_does_not_return_half_recovered() -> None:
    watch = Watch([100.0, 100.0])
    watch.verdicts(10)
    assert first(watch.verdicts(3, 0.25)) == 3
    assert set(watch.verdicts(60, 0.8)) == {None}
    assert first(watch.verdicts(5, 0.9)) == 3  # the median of five


def test_slow_for_good_is_the_new_usual() -> None:
    watch = Watch([100.0, 100.0], StragglerPolicy(2, permanent=50.0))
    watch.verdicts(10)
    assert first(watch.verdicts(3, 0.25)) == 3
    assert first(watch.verdicts(200, 0.25)) == 50
    assert set(watch.verdicts(100, 0.25)) == {None}, "and it does not leave for it again"
    assert set(watch.verdicts(50, 1.0)) == {None}, "nor when it is fast again"
    assert first(watch.verdicts(3, 0.25)) == 3, "which is then its usual speed"


def test_what_is_measured_apart_does_not_change_the_usual_speed() -> None:
    watch = Watch([100.0, 100.0])
    watch.verdicts(10)
    assert first(watch.verdicts(3, 0.25)) == 3
    watch.verdicts(10, 0.25, 2.0)
    assert first(watch.verdicts(5, 2.0, 2.0)) == 5
    assert set(watch.verdicts(30)) == {None}


def test_unknown_speeds_are_left_out() -> None:
    watch = Watch([100.0, 100.0])
    watch.verdicts(10)
    seen = [watch.see(factor) for factor in (0.25, 0.0, 0.25, 0.0, 0.0, 0.25)]
    assert first(seen) == 6


def test_a_slowdown_has_to_last_as_long_as_asked() -> None:
    watch = Watch([100.0, 100.0], StragglerPolicy(2, least_seconds=6.0))
    watch.verdicts(10)
    assert first(watch.verdicts(20, 0.25)) == 7
