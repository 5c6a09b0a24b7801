"""Workers that meet take as long as the slowest of them, and what they exchange."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meeting_steps import meeting_steps

from phalanx.plan.timing.lockstep import run_lockstep
from phalanx.plan.timing.work import StepDraws


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
    many = single.many(np.ones(20_000, np.int64), np.arange(20_000))
    assert many.std() == pytest.approx(0.6, rel=0.03)
