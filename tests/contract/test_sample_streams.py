"""Samples without numbers: every strategy trains each exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strategy_cases import EVERY, SWITCHED, quick
from torch.utils.data import IterableDataset
from training import Training, assert_identical, made_data

from phalanx.train.control.directives import Directive, Kind


class Streamed(IterableDataset[Any]):
    def __init__(self, samples: int) -> None:
        self._columns = made_data(samples)

    def __iter__(self) -> Iterator[Any]:
        return zip(*self._columns, strict=True)


def _training(folder: Path, spec: str, workers: int, **options: Any) -> Training:
    data = Streamed(61)  # in one process, as the script has it
    return Training(folder, spec, workers, samples=61, data=lambda _: data, **options)


@pytest.mark.parametrize("strategy", [*quick(EVERY), *SWITCHED])
def test_each_sample_once(tmp_path: Path, strategy: str) -> None:
    trained = _training(tmp_path, strategy, 3)
    assert trained.run().counts() == trained.once()


def test_stopped_in_mid_epoch_it_ends_where_an_unbroken_run_ends(tmp_path: Path) -> None:
    unbroken = _training(tmp_path / "unbroken", "allreduce", 3).run()
    saved = _training(tmp_path / "saved", "allreduce", 3, commands={3: Directive(Kind.SAVE)}).run()
    resume = {"resume": str(saved.checkpoint()[0])}
    resumed = _training(tmp_path / "resumed", "allreduce", 2, settings=resume).run()
    assert resumed.counts() + saved.counts(until_save=True) == saved.once()
    assert_identical(saved.state(), unbroken.state())
