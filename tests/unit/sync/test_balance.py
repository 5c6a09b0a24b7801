"""Shares that follow speeds: they come to the best, and then leave it alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.sync.balance import Balancer, Meter, shares

known_speeds = st.floats(1.0, 1e4)
some_speeds = st.lists(st.one_of(st.just(0.0), known_speeds), min_size=1, max_size=8)


def test_a_meter_knows_nothing_at_first() -> None:
    meter = Meter()
    assert meter.value == 0.0
    meter.add(0, 1.0)
    meter.add(5, 0.0)
    assert meter.value == 0.0


def test_a_hiccup_does_not_change_a_meter() -> None:
    meter = Meter()
    for seconds in (0.1, 0.1, 0.1, 60.0, 0.1):
        meter.add(10, seconds)
    assert meter.value == pytest.approx(100.0)


def test_a_meter_forgets() -> None:
    meter = Meter()
    for _ in range(50):
        meter.add(10, 0.1)
    for _ in range(8):
        meter.add(10, 0.2)
    assert meter.value == pytest.approx(50.0)
    meter.forget()
    assert meter.value == 0.0


@settings(deadline=None)
@given(some_speeds)
def test_shares_are_whole_and_none_is_too_small(speeds: list[float]) -> None:
    found = shares(speeds)
    if found is None:
        return
    assert sum(found) == pytest.approx(1.0)
    assert min(found) >= 1.0 / (50 * len(speeds)) * (1 - 1e-12)
    assert shares(speeds, found) is None, "what follows from the speeds fits them"


@settings(deadline=None)
@given(st.lists(st.floats(100.0, 1000.0), min_size=2, max_size=8))
def test_shares_are_proportional_to_speeds(speeds: list[float]) -> None:
    found = shares(speeds, least=0.0) or [1.0 / len(speeds)] * len(speeds)
    assert found == pytest.approx([speed / sum(speeds) for speed in speeds])


def test_small_differences_change_nothing() -> None:
    assert shares([100.0, 109.0]) is None
    assert shares([100.0, 130.0]) == pytest.approx([100 / 230, 130 / 230])
    assert shares([100.0, 130.0], [0.45, 0.55]) is None
    assert shares([100.0, 130.0], [0.55, 0.45]) is not None


def test_unknown_speeds_count_as_the_mean() -> None:
    assert shares([0.0, 0.0]) is None
    assert shares([0.0, 300.0, 100.0]) == pytest.approx([1 / 3, 1 / 2, 1 / 6])
    assert shares([0.0, 300.0]) is None, "nothing is known to differ"
    assert shares([0.0] + [100.0] * 7, [0.14] + [0.86 / 7] * 7) is None, "nor here"


def test_a_very_slow_worker_keeps_a_little() -> None:
    assert shares([1e-6, 1.0, 1.0]) == pytest.approx([1 / 150, 149 / 300, 149 / 300])


@dataclass
class Machine:
    """A step of n samples takes fixed + each * n seconds, more or less."""

    fixed: float
    each: float

    def seconds(self, samples: float) -> float:
        return self.fixed + self.each * samples


BATCH = 256.0


def best_makespan(machines: list[Machine]) -> float:
    """The least time in which all together do a batch, found by bisection."""
    low, high = 0.0, max(m.seconds(BATCH) for m in machines)
    for _ in range(100):
        middle = (low + high) / 2
        done = sum(max(0.0, (middle - m.fixed) / m.each) for m in machines)
        low, high = (middle, high) if done < BATCH else (low, middle)
    return high


class Training:
    """Measures noisy steps, and shares again when the balancer says so."""

    def __init__(self, machines: list[Machine], noise: float = 0.0, seed: int = 0) -> None:
        self.machines, self.noise, self.random = machines, noise, random.Random(seed)
        self.balancer = Balancer(len(machines))
        self.meters = [Meter() for _ in machines]
        self.step = 0
        self.changed: list[int] = []

    def run(self, steps: int) -> Training:
        for _ in range(steps):
            self.step += 1
            for machine, meter, share in zip(
                self.machines, self.meters, self.balancer.shares, strict=True
            ):
                seconds = machine.seconds(BATCH * share)
                meter.add(BATCH * share, seconds * self.random.uniform(1, 1 + 2 * self.noise))
            if self.balancer.observe(self.step, [meter.value for meter in self.meters]):
                self.changed.append(self.step)
        return self

    @property
    def makespan(self) -> float:
        pairs = zip(self.machines, self.balancer.shares, strict=True)
        return max(machine.seconds(BATCH * share) for machine, share in pairs)


@st.composite
def crews(draw: st.DrawFn) -> list[Machine]:
    """Up to ten times as fast as each other; fixed costs from none to half of a step or more."""
    each = draw(st.lists(st.floats(1.0, 10.0), min_size=1, max_size=8))
    alone = BATCH / sum(1.0 / e for e in each)
    return [Machine(draw(st.floats(0.0, 1.0)) * alone, e) for e in each]


UNTOUCHED = 1 / 0.9
"""Where speeds differ by less than 10 %, shares stay equal, and this much may be lost."""


@settings(deadline=None, max_examples=60)
@given(crews())
def test_the_makespan_comes_within_five_percent_of_the_best(crew: list[Machine]) -> None:
    training = Training(crew).run(400)
    settled = len(training.changed)
    assert training.makespan <= (1.05 if settled else UNTOUCHED) * best_makespan(crew)
    training.run(1000)
    assert len(training.changed) == settled, "and then it stays quiet"


@settings(deadline=None, max_examples=40)
@given(crews(), st.integers(0, 1000))
def test_noise_neither_spoils_the_shares_nor_moves_them_for_ever(
    crew: list[Machine], seed: int
) -> None:
    training = Training(crew, noise=0.05, seed=seed).run(400)
    settled = len(training.changed)
    allowed = 1.10 if settled else UNTOUCHED + 0.05
    assert training.makespan <= allowed * best_makespan(crew)
    training.run(1000)
    assert len(training.changed) - settled <= 2
    assert training.makespan <= allowed * best_makespan(crew)


def test_equal_workers_are_left_alone() -> None:
    assert Training([Machine(1.0, 1.0)] * 4, noise=0.05).run(2000).changed == []


def test_the_makespan_never_swings() -> None:
    """Each change is an improvement: proportional updates do not pass the goal."""
    training = Training([Machine(20.0, 1.0), Machine(5.0, 4.0), Machine(60.0, 0.5)])
    before = training.makespan
    for _ in range(300):
        training.run(1)
        assert training.makespan <= before * (1 + 1e-9)
        before = training.makespan
    assert len(training.changed) >= 2


def test_looks_are_rarer_while_nothing_changes() -> None:
    """A difference just below 30 %, which alone does not ask for a look."""
    balancer = Balancer(2)
    for step in range(8 + 16 + 32 + 64 + 1):
        assert balancer.observe(step, [100.0, 100.0]) is None
    looked = [s for s in range(121, 400) if balancer.observe(s, [100.0, 128.0])]
    assert looked == [8 + 16 + 32 + 64 + 64]


def test_a_speed_that_changes_is_answered_at_once() -> None:
    balancer = Balancer(2)
    for step in range(130):
        balancer.observe(step, [100.0, 100.0])
    assert balancer.observe(130, [100.0, 25.0]) == pytest.approx([0.8, 0.2])
    # Its smaller share gives it another speed, which has to be measured first.
    answers = [balancer.observe(step, [100.0, 15.0]) for step in range(131, 139)]
    assert answers[:-1] == [None] * 7
    assert answers[-1] == pytest.approx([100 / 115, 15 / 115])


def test_a_worker_that_slows_down_and_recovers_is_followed() -> None:
    crew = [Machine(5.0, 1.0), Machine(5.0, 1.0)]
    training = Training(crew, noise=0.03).run(200)
    assert training.changed == []
    crew[1].each = 4.0
    training.run(100)
    assert training.makespan <= 1.1 * best_makespan(crew)
    crew[1].each = 1.0
    training.run(100)
    assert training.makespan <= 1.1 * best_makespan(crew)


def test_the_balancer_goes_on_from_given_shares() -> None:
    balancer = Balancer(2, [0.8, 0.2])
    assert all(balancer.observe(step, [400.0, 100.0]) is None for step in range(200))
    assert balancer.shares == [0.8, 0.2]
