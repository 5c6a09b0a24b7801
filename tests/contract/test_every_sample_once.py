"""Each sample reaches the loss exactly once per epoch, whatever the strategy and the speeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from on_hosts import HOSTS
from ranks import as_ranks
from strategy_cases import EVERY, NAMES, SWITCHED, UNCODED, is_lockstep, quick
from torch import nn
from torch.utils.data import IterableDataset
from training import Training, assert_identical, made_data

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.train.control.directives import Directive, Kind

SAMPLES, BATCH = 61, 12  # the last batch is one sample: all workers but one have none of it
SPEEDS = [0.01, 0.005, 0.01, 0.003]  # steps long enough for shares to follow the speeds
if HOSTS:
    SPEEDS = [1.0, 0.5, 1.0, 0.3]  # there time is real, and steps are long enough anyhow


def _training(folder: Path, strategy: str, workers: int, **options: Any) -> Training:
    return Training(folder, strategy, workers, samples=SAMPLES, batch=BATCH, **options)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("strategy", [*EVERY, *SWITCHED])
def test_each_sample_once_with_slow_workers(tmp_path: Path, strategy: str, workers: int) -> None:
    slow = {"slow": SPEEDS[:workers], "balance": "auto"}
    trained = _training(tmp_path, strategy, workers, settings=slow)
    assert trained.run().counts() == trained.once()
    if is_lockstep(strategy):
        assert all(trained.seen)  # a free-running worker may come too late for any batch


def test_each_sample_once_alone(tmp_path: Path) -> None:
    trained = _training(tmp_path, "single", 1)
    assert trained.run().counts() == trained.once()


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("strategy", [*NAMES, "groups:size=2", *SWITCHED])
def test_a_loop_that_counts_its_batches(tmp_path: Path, strategy: str, workers: int) -> None:
    """Each worker has a part of each batch, so that it takes as many as its loader has."""
    trained = _training(tmp_path, strategy, workers, counted=True)
    assert trained.run().counts() == trained.once()


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("strategy", ["allreduce", "bsp", "async", "ssp", "dssp", "groups:size=2"])
def test_steps_of_counted_batches_weigh_as_those_that_are_claimed(
    tmp_path: Path, strategy: str, workers: int
) -> None:
    """Each gradient is 1, at a rate of 1: the weight is the number of steps."""
    x, batch = torch.ones(SAMPLES, 1, dtype=torch.float64), 15 if workers == 3 else 12

    def work(rank: int) -> float:
        model = nn.Linear(1, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1.0))
        for _ in run.epochs(3):
            reader = run._parts.readers.of((x,), trains=True)
            for (part,) in run._loop.through_batches(reader, batch, counted=True):
                run.backward(model(part).mean())
                run.step()
        return float(model.weight.detach())

    # A last batch that is not full is one more step, or weighs less.
    wanted = pytest.approx(-3 * -(-SAMPLES // batch), abs=3)
    assert as_ranks(workers, tmp_path, work, RunSettings(strategy=strategy))[0] == wanted


class Streamed(IterableDataset[Any]):
    """Samples without numbers."""

    def __iter__(self) -> Iterator[Any]:
        return zip(*made_data(SAMPLES), strict=True)


STREAM = Streamed()


def _stream(_: Training) -> Streamed:
    """One for all workers, as the script has it."""
    return STREAM


@pytest.mark.parametrize("strategy", [*quick(EVERY), *SWITCHED])
def test_each_sample_of_a_stream_once(tmp_path: Path, strategy: str) -> None:
    trained = _training(tmp_path, strategy, 3, data=_stream)
    assert trained.run().counts() == trained.once()


def test_a_stream_stopped_in_mid_epoch_ends_where_an_unbroken_one_ends(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": _stream}
    unbroken = _training(tmp_path / "unbroken", "allreduce", 3, **options).run()
    options["commands"] = {3: Directive(Kind.SAVE)}
    saved = _training(tmp_path / "saved", "allreduce", 3, **options).run()
    options |= {"commands": {}, "settings": {"resume": str(saved.checkpoint()[0])}}
    resumed = _training(tmp_path / "resumed", "allreduce", 2, **options).run()
    assert resumed.counts() + saved.counts(until_save=True) == saved.once()
    assert_identical(saved.state(), unbroken.state())


@pytest.mark.parametrize(("samples", "workers"), [(27, 2), (29, 3)])
@pytest.mark.parametrize("strategy", UNCODED)
def test_a_last_batch_never_leaves_batch_norm_a_single_sample(
    tmp_path: Path, strategy: str, samples: int, workers: int
) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    trained = Training(tmp_path, strategy, workers, model, samples=samples, batch=8, epochs=1)
    assert trained.run().counts() == trained.once()
