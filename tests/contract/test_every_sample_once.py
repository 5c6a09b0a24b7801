"""Each sample reaches the loss exactly once per epoch, whatever the strategy and the speeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from on_hosts import HOSTS
from strategy_cases import EVERY, SWITCHED, is_lockstep
from training import Training

SAMPLES, BATCH = 61, 12  # the last batch is one sample: all workers but one have none of it
SPEEDS = [0.01, 0.005, 0.01, 0.003]  # steps long enough for shares to follow the speeds
if HOSTS:
    SPEEDS = [1.0, 0.5, 1.0, 0.3]  # there time is real, and steps are long enough anyhow


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("strategy", [*EVERY, *SWITCHED])
def test_each_sample_once_with_slow_workers(tmp_path: Path, strategy: str, workers: int) -> None:
    slow = {"slow": SPEEDS[:workers], "balance": "auto"}
    trained = Training(tmp_path, strategy, workers, samples=SAMPLES, batch=BATCH, settings=slow)
    assert trained.run().counts() == trained.once()
    if is_lockstep(strategy):
        assert all(trained.seen)  # a free-running worker may come too late for any batch


def test_each_sample_once_alone(tmp_path: Path) -> None:
    trained = Training(tmp_path, "single", 1, samples=SAMPLES, batch=BATCH)
    assert trained.run().counts() == trained.once()
