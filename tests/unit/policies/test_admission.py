"""Who may go on, in scripted time: workers with given step times, and a small event loop."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.policies.admission import AWAY, Clocks, Dynamic, Free, Rule, Stale, rejoin

durations = st.integers(1, 40).map(float)


@dataclass
class Worker:
    durations: list[float]
    rests: dict[int, float] = field(default_factory=dict)
    """After how many steps it rests, and how long."""


class Race:
    """Runs all workers to their end; what they did is kept for the assertions."""

    def __init__(self, rule: Rule, workers: list[Worker]) -> None:
        self.rule, self.workers = rule, workers
        n = len(workers)
        self.clocks = clocks([0] * n, [0.0] * n, [0.0] * n)
        self.done, self.last, self.arrived = [0] * n, [0] * n, [0.0] * n
        self.computing: dict[int, int] = {}
        self.waited = [0.0] * n
        self.leads: list[int] = []
        self.granted: set[int] = set()
        self.spread = 0
        self._events: list[tuple[float, int, int]] = []
        self._order = itertools.count()
        self._waiting = set(range(n))

    def run(self) -> Race:
        self._admit(0.0)
        while self._events:
            now, _, rank = heapq.heappop(self._events)
            if rank in self.computing:
                self._push(rank, now)
            else:
                self._come_back(rank, now)
            self._admit(now)
        assert not self._waiting, "somebody waits for ever"
        assert self.done == [len(w.durations) for w in self.workers]
        return self

    def _later(self, moment: float, rank: int) -> None:
        heapq.heappush(self._events, (moment, next(self._order), rank))

    def _push(self, rank: int, now: float) -> None:
        clocks, worker = self.clocks, self.workers[rank]
        duration = worker.durations[self.done[rank]]
        self.done[rank] += 1
        self._set(rank, self.computing.pop(rank) + 1)
        clocks.times[rank], clocks.intervals[rank] = now, duration
        clocks.grants[rank] = self.rule.decide(rank, clocks, now)
        self.granted.add(clocks.grants[rank])
        if self.done[rank] == len(worker.durations) or self.done[rank] in worker.rests:
            self.last[rank] = clocks.steps[rank]
            self._set(rank, AWAY)
        if self.done[rank] == len(worker.durations):
            return
        if self.done[rank] in worker.rests:
            self._later(now + worker.rests[self.done[rank]], rank)
        else:
            self._await(rank, now)

    def _set(self, rank: int, clock: int) -> None:
        self.clocks.steps[rank] = clock
        self.clocks.floor = min(self.clocks.steps)

    def _come_back(self, rank: int, now: float) -> None:
        newest = max(self.last)
        self._set(rank, rejoin(self.last[rank], self.clocks.floor, newest))
        self.clocks.times[rank] = now
        self._await(rank, now)

    def _await(self, rank: int, now: float) -> None:
        self._waiting.add(rank)
        self.arrived[rank] = now

    def _admit(self, now: float) -> None:
        for rank in sorted(self._waiting):
            if self.rule.admits(rank, self.clocks):
                self._waiting.remove(rank)
                self.waited[rank] += now - self.arrived[rank]
                self.computing[rank] = self.clocks.steps[rank]
                self._later(now + self.workers[rank].durations[self.done[rank]], rank)
        self._note()

    def _note(self) -> None:
        present = [n for n in self.clocks.steps if n < AWAY]
        if present:
            self.spread = max(self.spread, max(present) - min(present))
            self.leads += [begun - min(present) for begun in self.computing.values()]


@st.composite
def workers(draw: st.DrawFn, rests: bool = True) -> list[Worker]:
    """One to eight, each with a pace of its own that changes now and then."""
    found = []
    for _ in range(draw(st.integers(1, 8))):
        steps = draw(st.integers(1, 20))
        pace, other = draw(durations), draw(durations)
        change = draw(st.integers(0, steps))
        away = draw(st.dictionaries(st.integers(1, steps), durations, max_size=3)) if rests else {}
        found.append(Worker([pace] * change + [other] * (steps - change), away))
    return found


ranges = st.tuples(st.integers(0, 4), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair)))


@settings(deadline=None)
@given(workers(), st.integers(0, 5))
def test_the_bound_is_never_exceeded(crew: list[Worker], bound: int) -> None:
    race = Race(Stale(bound), crew).run()
    assert max(race.leads) <= bound
    assert race.granted == {0}


@settings(deadline=None)
@given(workers(), ranges)
def test_the_dynamic_bound_stays_in_its_range(crew: list[Worker], limits: tuple[int, int]) -> None:
    low, high = limits
    race = Race(Dynamic(low, high), crew).run()
    assert max(race.leads) <= high
    assert min(race.granted) >= 0
    assert max(race.granted) <= high - low


@settings(deadline=None)
@given(workers(rests=False))
def test_a_bound_of_nothing_is_lockstep(crew: list[Worker]) -> None:
    steps = min(len(worker.durations) for worker in crew)
    race = Race(Stale(0), [Worker(worker.durations[:steps]) for worker in crew]).run()
    assert set(race.leads) == {0}
    assert race.spread <= 1


@settings(deadline=None)
@given(workers(rests=False))
def test_the_free_never_wait(crew: list[Worker]) -> None:
    assert sum(Race(Free(), crew).run().waited) == 0.0


@settings(deadline=None)
@given(workers(rests=False), ranges)
def test_nobody_waits_longer_under_the_dynamic_bound_than_under_its_lowest(
    crew: list[Worker], limits: tuple[int, int]
) -> None:
    low, high = limits
    steps = min(len(worker.durations) for worker in crew)
    crew = [Worker(worker.durations[:steps]) for worker in crew]
    strict, dynamic, loose = (
        Race(rule, crew).run().waited for rule in (Stale(low), Dynamic(low, high), Stale(high))
    )
    assert all(b <= a for a, b in zip(strict, dynamic, strict=True))
    assert all(c <= b for b, c in zip(dynamic, loose, strict=True))


@pytest.mark.parametrize("fast", [1.0, 2.0, 3.0])
def test_with_one_slow_worker_the_dynamic_bound_saves_waiting(fast: float) -> None:
    crew = [Worker([fast] * 40), Worker([fast] * 40), Worker([7.0] * 40)]
    strict, dynamic = (sum(Race(r, crew).run().waited) for r in (Stale(2), Dynamic(2, 8)))
    assert dynamic < strict


def clocks(steps: list[int], times: list[float], intervals: list[float]) -> Clocks:
    return Clocks(steps, times, intervals, [0] * len(steps), min(steps))


def test_the_grant_stops_just_before_the_push_of_the_slowest() -> None:
    # The slowest pushes at 13.5; at 13 the fast one, which is at 10 and 3 ahead, has pushed thrice.
    given_clocks = clocks([5, 2], [10.0, 3.5], [1.0, 10.0])
    assert Dynamic(2, 20).decide(0, given_clocks, 10.0) == 3


def test_the_grant_is_no_more_than_the_range_allows() -> None:
    given_clocks = clocks([5, 2], [10.0, 3.5], [1.0, 10.0])
    assert Dynamic(2, 4).decide(0, given_clocks, 10.0) == 2


def test_nothing_is_granted_where_waiting_now_is_best() -> None:
    # The slowest pushes in 0.1; after a step of 8 the worker would wait for 2.1.
    given_clocks = clocks([5, 2], [10.0, 0.1], [8.0, 10.0])
    assert Dynamic(2, 20).decide(0, given_clocks, 10.0) == 0


def test_one_step_is_enough_for_a_worker_that_is_hardly_faster() -> None:
    given_clocks = clocks([5, 2], [10.0, 9.5], [1.0, 1.01])
    assert Dynamic(2, 20).decide(0, given_clocks, 10.0) == 1


def test_the_last_of_the_slowest_counts() -> None:
    # Both have done 2 steps: the lead shrinks at 14.5, not at 11.5.
    given_clocks = clocks([5, 2, 2], [10.0, 1.5, 4.5], [1.0, 10.0, 10.0])
    assert Dynamic(2, 20).decide(0, given_clocks, 10.0) == 4


@pytest.mark.parametrize("intervals", [[0.0, 10.0], [1.0, 0.0]])
def test_an_unknown_pace_grants_nothing(intervals: list[float]) -> None:
    assert Dynamic(2, 20).decide(0, clocks([5, 2], [10.0, 3.5], intervals), 10.0) == 0


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
    clock = rejoin(last, min(steps), newest)
    assert clock >= last
    if present:
        assert clock >= min(present)
        assert clock == max(last, min(present))
    else:
        assert clock == max(last, newest)
