from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from phalanx.core.spec import parse_spec
from phalanx.train.control.balancing import TICK_SECONDS, SpeedWatch
from phalanx.train.control.control import Control
from phalanx.train.control.rendezvous import BUSY, FIGURES, SAMPLES, SPEED, STEPS, WHOLE

BATCH = 300.0


def watching(workers: int, strategy: str = "ssp") -> SpeedWatch:
    spec = parse_spec(strategy)
    watch = SpeedWatch(workers, balance=True)
    watch.enter(spec.phases[0], spec, False)
    return watch


def step(figures: np.ndarray, watch: SpeedWatch, each: list[float], seconds: float) -> None:
    """Every worker that is left does its share; ``each`` is what a sample costs it."""
    for rank, cost in enumerate(each):
        samples = watch.shares[rank] * BATCH
        figures[rank] += np.eye(len(FIGURES))[STEPS] + np.eye(len(FIGURES))[SAMPLES] * samples
        figures[rank, BUSY] += cost * samples
        figures[rank, WHOLE] += max(seconds, max(each) * samples)


def test_who_is_gone_gets_no_more_of_the_work() -> None:
    """What it wrote stays in the cells for good; those who are left slow down beside it."""
    figures, watch, lost = np.zeros((3, len(FIGURES))), watching(3), {2}
    for _ in range(5):
        step(figures, watch, [0.001] * 3, 0.1)
        watch.new_shares(figures)
    for _ in range(200):
        step(figures[:2], watch, [0.003, 0.002], 0.1)
        watch.new_shares(figures, lost)
    assert watch.shares[2] <= 1 / 3 + 0.05
    cells = SimpleNamespace(figures=figures)
    figures[:, SPEED] = 900.0
    control = SimpleNamespace(_cells=cells, _arena=SimpleNamespace(lost=lost))
    read = Control.speeds.fget
    assert read is not None and read(control) == [900.0, 900.0, 0.0]


@pytest.mark.parametrize("seconds", [0.1, 0.001])
def test_short_steps_are_looked_at_together(seconds: float) -> None:
    figures, watch, looked = np.zeros((2, len(FIGURES))), watching(2, "allreduce"), 0
    observe = watch._balancer.observe

    def counted(tick: object) -> object:
        nonlocal looked
        looked += 1
        return observe(tick)  # type: ignore[arg-type]

    watch._balancer.observe = counted  # type: ignore[method-assign, assignment]
    for _ in range(101):
        step(figures, watch, [seconds / BATCH] * 2, seconds)
        watch.new_shares(figures)
    assert looked == (100 if seconds > TICK_SECONDS else pytest.approx(5, abs=1))
