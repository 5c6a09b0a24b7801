"""A loop that takes as many batches as its loader has: each worker has a part of each."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from ranks import as_ranks
from strategy_cases import NAMES, SWITCHED
from torch import nn

import phalanx
from phalanx.core.settings import RunSettings

SAMPLES, BATCH, EPOCHS = 61, 12, 3  # the last batch has one sample


def _train(folder: Path, spec: str, workers: int, batch: int = BATCH) -> tuple[list[int], float]:
    """How often each sample was trained, and the weight: each gradient is 1, at a rate of 1."""
    seen = [0] * SAMPLES

    def work(rank: int) -> float:
        model = nn.Linear(1, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1.0))
        x = torch.ones(SAMPLES, 1, dtype=torch.float64), torch.arange(SAMPLES)
        for _ in run.epochs(EPOCHS):
            reader = run._parts.readers.of(x, trains=True)
            batches = run._loop.through_batches(reader, batch, counted=True)
            for part, numbers in islice(batches, -(-SAMPLES // batch)):
                if run.samples:
                    for number in numbers.tolist():
                        seen[number] += 1
                run.backward(model(part).mean())
                run.step()
            assert next(batches, None) is None
        return float(model.weight.detach())

    found = as_ranks(workers, folder, work, RunSettings(strategy=spec))
    return seen, found[0]


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("strategy", [*NAMES, "groups:size=2", *SWITCHED])
def test_each_sample_once_in_as_many_batches_as_alone(
    tmp_path: Path, strategy: str, workers: int
) -> None:
    seen, _ = _train(tmp_path, strategy, workers)
    assert seen == [EPOCHS] * SAMPLES


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("strategy", ["allreduce", "bsp", "async", "ssp", "dssp", "groups:size=2"])
def test_steps_weigh_as_those_of_claimed_batches(
    tmp_path: Path, strategy: str, workers: int
) -> None:
    _, weight = _train(tmp_path, strategy, workers, batch=12 if workers != 3 else 15)
    _, alone = _train(tmp_path / "alone", "single", 1, batch=12 if workers != 3 else 15)
    steps = -alone  # each of 1
    assert steps == EPOCHS * -(-SAMPLES // (12 if workers != 3 else 15))
    # A last batch that is not full is one more step, or weighs less.
    assert weight == pytest.approx(alone, abs=EPOCHS)
