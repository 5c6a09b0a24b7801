"""What Spark loses: executors, and the processes beside their tasks."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load
from test_spark import ROWS, estimator, frame_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]
EPOCHS, STEPS = 3, ROWS // 60
STEPS_OF_KILLS = random.Random(2026).sample(range(1, 29), 5)
KILLS = [*((n % 2, step, True) for n, step in enumerate(STEPS_OF_KILLS)), (1, 12, False)]
"""The worker whose executor goes, its step, and whether there is a store for checkpoints."""


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


def _assert_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + 20
    while left := [pid for pid in pids if psutil.pid_exists(pid)]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.2)


def _ids(folder: Path, pids: set[int]) -> list[list[int]]:
    """By rank, the rows that these processes have had, in their order."""
    names = sorted(name for name in folder.iterdir() if int(name.name.partition("-")[2]) in pids)
    return [[int(word) for word in name.read_text().split()] for name in names]


@pytest.mark.parametrize(("rank", "step", "store"), KILLS)
def test_an_executor_killed_at_a_random_step(
    spark: Any, tmp_path: Path, rank: int, step: int, store: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whole epochs have each row once; what is trained again begins with one."""
    notes, kept = tmp_path / "notes", tmp_path / "store"
    notes.mkdir()
    rows = frame_of(spark).selectExpr("array(float(number), a, b, c, d) as features", "label")
    slow = estimator(
        model="spark_models:Notes",
        model_options={"folder": str(notes), "seconds": 0.05},
        epochs=EPOCHS,
        store=str(kept) if store else None,
    )

    def reached() -> bool:
        return any(len(n.read_text().splitlines()) > step for n in notes.glob(f"{rank}-*"))

    with ThreadPoolExecutor(1) as pool:
        fit = pool.submit(slow.fit, rows)
        _wait(reached, fit)
        first = _seen(notes)
        _executor_of(next(pid for pid, each in first.items() if each == rank)).kill()
        fitted = fit.result(timeout=200)
    again = set(_seen(notes)) - set(first)
    assert len(again) == 2
    assert all(value.isfinite().all() for value in load(fitted.weights).values())
    done = int(Path(resumed).name) if (resumed := fitted.figures[0].resumed) else 0
    assert done >= (max(0, step // STEPS - 1) if store else 0), (
        "at most the checkpoint in hand is missed"
    )
    said = "from its newest checkpoint" if resumed else "from the start"
    assert f"Spark lost an executor; the training begins again {said}" in capfd.readouterr().err
    seen = Counter(number for ids in _ids(notes, set(first)) for number in ids)
    assert {done, done + 1, done + 2} >= {seen[number] for number in range(ROWS)}
    for epoch in range(EPOCHS - done):
        mine = zip(_ids(notes, again), (one.rows for one in fitted.figures), strict=True)
        ids = [number for all, count in mine for number in all[epoch * count :][:count]]
        assert sorted(ids) == list(range(ROWS))
    assert sum(map(len, _ids(notes, again))) == ROWS * (EPOCHS - done)
    _assert_gone({*first, *again})
