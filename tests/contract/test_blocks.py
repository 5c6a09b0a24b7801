"""Data in blocks: every strategy trains each row exactly once, and goes on from any checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from on_hosts import HOSTS
from strategy_cases import EVERY, LOCKSTEP, SWITCHED, quick
from training import Training, assert_identical, made_data

from phalanx.core.errors import InputError
from phalanx.data.blocks.block import Block, Columns
from phalanx.data.blocks.block_data import BlockData
from phalanx.train.control.directives import Directive, Kind

SIZES = [0, 17, 3, 1, 30, 8, 0, 2]  # 61 rows
SPEEDS = [1.0, 0.5, 1.0, 0.3] if HOSTS else [0.01, 0.005, 0.01, 0.003]


class MadeBlocks:
    """Rows in memory; counts how often each block is read."""

    def __init__(self, sizes: list[int], homes: list[int] | None = None) -> None:
        self.blocks = [
            Block("made", n, rows, homes[n] if homes else None) for n, rows in enumerate(sizes)
        ]
        self._sizes, self._columns = sizes, made_data(sum(sizes))

    def read(self, block: Block) -> Columns:
        first = sum(self._sizes[: block.number])
        parts = [column[first : first + block.rows] for column in self._columns]
        return dict(zip("xyn", parts, strict=True))


def in_blocks(
    sizes: list[int], *, window: int = 12, homes: list[int] | None = None, **options: Any
) -> Callable[[Training], BlockData]:
    def make(training: Training) -> BlockData:
        form = lambda columns: tuple(columns[name] for name in "xyn")  # noqa: E731
        return BlockData(MadeBlocks(sizes, homes), form=form, window=window, **options)

    return make


def _training(folder: Path, spec: str, workers: int, **options: Any) -> Training:
    chosen = {"samples": sum(SIZES), "batch": 12, "data": in_blocks(SIZES), **options}
    return Training(folder, spec, workers, **chosen)


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("strategy", [*quick(EVERY), *SWITCHED])
def test_each_row_once_with_slow_workers(tmp_path: Path, strategy: str, workers: int) -> None:
    slow = {"slow": SPEEDS[:workers], "balance": "auto"}
    trained = _training(tmp_path, strategy, workers, settings=slow)
    assert trained.run().counts() == trained.once()


def test_each_row_once_alone(tmp_path: Path) -> None:
    trained = _training(tmp_path, "single", 1)
    assert trained.run().counts() == trained.once()


@pytest.mark.parametrize("strategy", [*quick(EVERY), *SWITCHED])
def test_rows_that_one_worker_has(tmp_path: Path, strategy: str) -> None:
    homes = [0, 0, 1, 2, 1, 2, 0, 2]
    data = in_blocks(SIZES, homes=homes)
    trained = _training(tmp_path, strategy, 3, data=data)
    if "groups" in strategy:  # a group shares out what one of its workers has
        with pytest.raises(InputError, match="each worker has rows of its own"):
            trained.run()
        return
    assert trained.run().counts() == trained.once()
    ends = torch.tensor(SIZES).cumsum(0).tolist()
    for rank, seen in enumerate(trained.seen):
        assert {homes[next(b for b, end in enumerate(ends) if n < end)] for _, n in seen} == {rank}


def test_an_order_of_its_own_in_each_epoch(tmp_path: Path) -> None:
    trained = _training(tmp_path, "allreduce", 1).run()
    first, second = ([n for e, n in trained.seen[0] if e == epoch] for epoch in (0, 1))
    assert sorted(first) == sorted(second) and first != second
    assert first != sorted(first)


def test_without_a_shuffle_one_worker_reads_in_the_order_of_the_files(tmp_path: Path) -> None:
    data = in_blocks(SIZES, shuffle=False)
    trained = _training(tmp_path, "allreduce", 1, data=data).run()
    assert trained.seen[0] == [(e, n) for e in range(2) for n in range(sum(SIZES))]


@pytest.mark.parametrize("spec", quick(LOCKSTEP))
def test_stopped_in_mid_epoch_it_ends_where_an_unbroken_run_ends(tmp_path: Path, spec: str) -> None:
    unbroken = _training(tmp_path / "unbroken", spec, 3).run()
    saved = _training(tmp_path / "saved", spec, 3, commands={3: Directive(Kind.SAVE)}).run()
    resume = {"resume": str(saved.checkpoint()[0])}
    resumed = _training(tmp_path / "resumed", spec, 3, settings=resume).run()
    assert resumed.counts() + saved.counts(until_save=True) == saved.once()
    for rank in range(3):
        assert_identical(saved.state(rank), unbroken.state(rank))
        assert_identical(resumed.state(rank), unbroken.state(rank))


@pytest.mark.skipif(HOSTS > 0, reason="scripted time decides who is when where")
@example([1, 31], "allreduce", 3, 1, 1, 1)  # a part of several ranges that looks like one
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.one_of(st.integers(0, 4), st.integers(0, 40)), min_size=1, max_size=9).filter(
        lambda sizes: sum(sizes) >= 12
    ),
    st.sampled_from([*EVERY, *SWITCHED]),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 30),
)
def test_each_row_once_through_a_resume_with_another_number_of_workers(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    spec: str,
    workers: int,
    later: int,
    at: int,
    window: int,
) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    shape = {"samples": sum(sizes), "data": in_blocks(sizes, window=window), "batch": 12}
    first, second = ("single" if count == 1 else spec for count in (workers, later))
    saved = Training(folder / "saved", first, workers, commands={at: Directive(Kind.SAVE)}, **shape)
    assert saved.run().counts() == saved.once()
    if not sum(saved.before_save):
        return  # it ended before
    resume = {"resume": str(saved.checkpoint()[0])}
    resumed = Training(folder / "resumed", second, later, settings=resume, **shape).run()
    assert resumed.counts() + saved.counts(until_save=True) == saved.once()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"data": in_blocks(SIZES, window=40)}, id="window"),
        pytest.param({"data": in_blocks([20, 20, 21])}, id="files"),
        pytest.param({"data": lambda _: made_data(sum(SIZES))}, id="by sample"),
    ],
)
def test_it_does_not_go_on_in_another_order(tmp_path: Path, other: dict[str, Any]) -> None:
    saved = _training(tmp_path / "saved", "allreduce", 2, commands={3: Directive(Kind.SAVE)}).run()
    resume = {"resume": str(saved.checkpoint()[0])}
    with pytest.raises(InputError, match="whose data were read in another way"):
        _training(tmp_path / "resumed", "allreduce", 2, settings=resume, **other).run()
