"""Shares from the figures that workers write: who counts, and how often they are looked at."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from phalanx.core.spec import parse_spec
from phalanx.train.control.balancing import TICK_SECONDS, SpeedWatch
from phalanx.train.control.rendezvous import BUSY, FIGURES, SAMPLES, STEPS, WHOLE

BATCH = 300.0


def watching(workers: int, strategy: str) -> SpeedWatch:
    spec = parse_spec(strategy)
    watch = SpeedWatch(workers, balance=True)
    watch.enter(spec.phases[0], spec, False)
    return watch


def step(figures: np.ndarray, watch: SpeedWatch, costs: Mapping[int, float]) -> None:
    """A step of the workers in ``costs`` (seconds per sample); the slowest decides its length."""
    samples = {rank: watch.shares[rank] * BATCH for rank in costs}
    lap = max(costs[rank] * samples[rank] for rank in costs)
    for rank, cost in costs.items():
        figures[rank, STEPS] += 1
        figures[rank, SAMPLES] += samples[rank]
        figures[rank, BUSY] += cost * samples[rank]
        figures[rank, WHOLE] += lap


def test_the_others_are_balanced_after_a_worker_is_lost() -> None:
    """Its figures stay where they are: shares must neither wait for them nor take them as news."""
    figures, watch = np.zeros((3, len(FIGURES))), watching(3, "ssp")
    for _ in range(5):
        step(figures, watch, {0: 0.001, 1: 0.001, 2: 0.001})
        watch.new_shares(figures)
    for _ in range(100):
        step(figures, watch, {0: 0.003, 1: 0.002})
        watch.new_shares(figures, lost={2})
    assert watch.shares[1] / watch.shares[0] == pytest.approx(1.5, rel=0.01)
    assert watch.shares[2] == pytest.approx(1 / 3)


def test_nothing_is_concluded_before_every_worker_has_made_a_step() -> None:
    figures, watch = np.zeros((2, len(FIGURES))), watching(2, "ssp")
    watch.new_shares(figures)
    for _ in range(100):
        step(figures, watch, {0: 0.003})
        assert not watch.new_shares(figures)


@pytest.mark.parametrize("seconds", [0.1, 0.001])
def test_short_steps_are_looked_at_together(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, watch = np.zeros((2, len(FIGURES))), watching(2, "allreduce")
    looked: list[object] = []
    monkeypatch.setattr(watch._balancer, "observe", looked.append)
    for _ in range(101):
        step(figures, watch, dict.fromkeys(range(2), seconds / (BATCH / 2)))
        if figures[0, WHOLE] >= watch.next_tick:
            watch.new_shares(figures)
    assert len(looked) == (100 if seconds > TICK_SECONDS else 5)
