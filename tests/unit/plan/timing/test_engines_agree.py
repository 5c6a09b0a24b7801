"""The same draws give the same answer, whichever engine is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from meeting_steps import meeting_steps

from phalanx.plan.timing.flows import run_flows
from phalanx.plan.timing.heap import run_heap
from phalanx.plan.timing.lockstep import run_lockstep
from phalanx.plan.timing.work import FreeCluster, Outcome, StepDraws, Work
from phalanx.policies.admission import Dynamic, Free, Rule, Stale


@dataclass(frozen=True)
class Case:
    workers: int
    steps: int
    latency: float
    update: float
    servers: int
    by_samples: bool
    lost: list[tuple[int, int]]
    seed: int

    def work(self) -> Work:
        random = np.random.default_rng(self.seed)
        means = random.uniform(0.02, 0.4, self.workers)
        table = random.uniform(0.5, 1.5, (self.workers, 31)) * means[:, None]
        draws = StepDraws(means, 0.0, 0, table)
        return Work(draws, self.steps, lost=self.lost, by_samples=self.by_samples)

    def by_heap(self, rule: Rule) -> Outcome:
        return run_heap(self.work(), rule, self.latency, self.update)

    def by_flows(self, rule: Rule, speed: float = math.inf, homes: int = 99) -> Outcome:
        machines = self.workers + self.servers
        cluster = FreeCluster(
            compute=[1.0] * self.workers,
            variation=0.0,
            homes=[rank % homes for rank in range(self.workers)],
            servers=range(self.workers, machines),
            push_bytes=1e6,
            reply_bytes=2e6,
            sending=[speed] * machines,
            receiving=[speed] * machines,
            latency=self.latency,
            update=self.update,
        )
        return run_flows(self.work(), rule, cluster)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    workers, steps = draw(st.integers(1, 9)), draw(st.integers(1, 14))
    rank, step = st.integers(0, workers - 1), st.integers(0, steps)
    lost = draw(st.lists(st.tuples(rank, step), max_size=2))
    if draw(st.booleans()):
        lost = []
    return Case(
        workers,
        steps,
        draw(st.sampled_from([0.0, 0.001, 0.05])),
        draw(st.sampled_from([0.0, 0.003, 0.04])),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
        lost,
        draw(st.integers(0, 1 << 20)),
    )


RULES = st.just(Free()) | st.integers(0, 4).map(Stale)
RANGES = st.tuples(st.integers(0, 3), st.integers(0, 4)).map(lambda r: Dynamic(r[0], r[0] + r[1]))


def assert_equal(one: Outcome, other: Outcome) -> None:
    assert one.steps == other.steps
    assert one.seconds == pytest.approx(other.seconds, rel=1e-9)
    assert one.waited == pytest.approx(other.waited, rel=1e-9, abs=1e-9)
    assert one.staleness.tolist() == other.staleness.tolist()


def examples(count: int) -> Any:
    return settings(max_examples=count, deadline=None, derandomize=True)


@examples(120)
@example(Case(3, 1, 0.0, 0.0, 1, True, [(2, 0)], 1), Stale(0))
@given(cases(), RULES | RANGES)
def test_flows_over_links_without_a_limit_are_the_heap(case: Case, rule: Rule) -> None:
    assert_equal(case.by_flows(rule), case.by_heap(rule))


@examples(50)
@given(cases(), RULES | RANGES, st.integers(1, 9))
def test_every_step_is_done_over_links_with_a_limit(case: Case, rule: Rule, homes: int) -> None:
    limited, free = case.by_flows(rule, 2e7, homes), case.by_heap(rule)
    assert limited.steps == limited.staleness.sum() == free.steps
    assert limited.seconds >= free.seconds or case.workers > 1


class _Asked:
    """The rule of ``ssp``, which an engine does not recognise, so that it has to ask."""

    def __init__(self, bound: int) -> None:
        self._rule = Stale(bound)
        self.admits, self.decide = self._rule.admits, self._rule.decide


@examples(50)
@given(cases(), st.integers(0, 4))
def test_the_quick_way_of_the_heap_is_that_of_the_rule(case: Case, bound: int) -> None:
    assert_equal(case.by_heap(_Asked(bound)), case.by_heap(Stale(bound)))


def test_variation_makes_the_slowest_slower_and_seldom_meeting_evens_it_out() -> None:
    alike = np.full(64, 0.1)
    often, seldom = (run_lockstep(alike, 0.2, 0.0, 400, seed=1, every=n) for n in (1, 8))
    assert 1.4 < often.seconds / 40 < 1.75  # the greatest of 64 draws
    assert 1.1 < seldom.seconds / 40 < 1.25
    assert seldom.waited.sum() < often.waited.sum()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.integers(1, 30), st.integers(1, 7), st.integers(0, 1 << 20))
def test_the_answer_is_that_of_one_step_after_another(
    workers: int, steps: int, every: int, seed: int
) -> None:
    table = np.random.default_rng(seed).uniform(0.1, 1.0, (workers, steps))
    found = run_lockstep(np.ones(workers), 0.0, 0.25, steps, seed=0, every=every, draws=table)
    rows = meeting_steps(table, every, 0.25)
    assert len(rows) == found.steps
    assert max(admitted for *_, admitted, _ in rows) + 0.25 == pytest.approx(found.seconds)
    for rank in range(workers):
        own = [row for row in rows if row[0] == rank]
        waited = sum(row[3] - row[2] - table[rank, row[1]] for row in own)
        assert waited == pytest.approx(found.waited[rank])


def test_a_step_varies_as_asked() -> None:
    drawn = StepDraws([0.5, 2.0], 0.3, 7).block(0, 40_000)
    assert drawn.mean(axis=0) == pytest.approx([0.5, 2.0], rel=0.01)
    assert drawn.std(axis=0) / drawn.mean(axis=0) == pytest.approx([0.3, 0.3], rel=0.03)
    single = StepDraws([0.5, 2.0], 0.3, 7)
    some = [single.one(1, step) for step in range(20_000)]
    assert np.mean(some) == pytest.approx(2.0, rel=0.02)
    assert np.std(some) == pytest.approx(0.6, rel=0.03)
