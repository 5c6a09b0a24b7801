"""What Spark loses: executors, and the processes beside their tasks."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_spark import ROWS, estimator, features

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]


def _seen(folder: Path) -> dict[int, int]:
    """Processes that have made a model: their ranks."""
    made = [name.name.split("-") for name in folder.iterdir()]
    return {int(pid): int(rank) for rank, pid in made if rank != "x"}


def _wait(ready: Any, fit: Future[Any], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "it does not begin"
        assert not fit.done(), fit.result()
        time.sleep(0.1)


def _executor_of(pid: int) -> psutil.Process:
    """The Java process above a worker."""
    parents = psutil.Process(pid).parents()
    return next(p for p in parents if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline()))


@pytest.mark.parametrize("store", [True, False])
def test_an_executor_killed_in_mid_training(
    spark: Any, tmp_path: Path, store: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    pids, kept = tmp_path / "pids", tmp_path / "store"
    pids.mkdir()
    slow = estimator(
        model="spark_models:Slow",
        model_options={"folder": str(pids), "seconds": 0.1},
        epochs=4,
        store=str(kept) if store else None,
    )
    with ThreadPoolExecutor(1) as pool:
        fit = pool.submit(slow.fit, features(spark))
        _wait(lambda: len(_seen(pids)) == 2, fit)
        if store:
            _wait(lambda: list(kept.glob("*/checkpoints/[0-9]*")), fit)
        else:
            time.sleep(2)
        first = _seen(pids)
        victim = next(pid for pid, rank in first.items() if rank == 1)
        _executor_of(victim).kill()
        fitted = fit.result(timeout=200)
    assert sum(one.rows for one in fitted.figures) == ROWS
    again = set(_seen(pids)) - set(first)
    assert len(again) == 2
    assert bool(fitted.figures[0].resumed) == store
    said = "from its newest checkpoint" if store else "from the start"
    assert f"Spark lost an executor; the training begins again {said}" in capfd.readouterr().err
    deadline = time.monotonic() + 20
    while left := [pid for pid in {*first, *again} if psutil.pid_exists(pid)]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.2)
