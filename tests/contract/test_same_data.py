"""Workers whose data sets differ are refused, under every strategy; chance is no difference."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from on_hosts import HOSTS
from ranks import as_ranks
from strategy_cases import EVERY
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

import phalanx
from phalanx.core.errors import InputError, PeerLost
from phalanx.core.settings import RunSettings
from phalanx.data.fingerprint import fingerprint
from phalanx.data.reader import as_reader


def _whole(samples: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 4, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def _split(seed: int) -> Any:
    return random_split(_whole(), [18, 6], generator=torch.Generator().manual_seed(seed))


def _train(train: Any, test: Any = None, split: Callable[[Any], Any] = lambda batch: batch) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in run.epochs(2):
        for x, y in map(split, run.batches(train, batch=6)):
            run.backward(nn.functional.cross_entropy(model(x), y))
            run.step()
        if test is not None:
            run.evaluate(phalanx.accuracy, test)


def _refused(folder: Path, strategy: str, work: Callable[[int], None], workers: int = 2) -> str:
    """What the first worker that found it says; the others only hear that it is gone."""
    said: list[str] = []

    def attempt(rank: int) -> None:
        try:
            work(rank)
        except InputError as error:
            said.append(str(error))
            raise

    with pytest.raises((InputError, PeerLost)):
        as_ranks(workers, folder, attempt, RunSettings(strategy=strategy))
    return said[0] if said else ""


@pytest.mark.parametrize("strategy", EVERY)
def test_other_splits_are_refused(tmp_path: Path, strategy: str) -> None:
    said = _refused(tmp_path, strategy, lambda rank: _train(*_split(rank)))
    assert "different data to train on than worker" in said
    assert "torch.Generator().manual_seed(0)" in said


@pytest.mark.parametrize("strategy", ["allreduce", "async", "groups:size=2", "localsgd:every=3"])
def test_other_sets_to_evaluate_are_refused(tmp_path: Path, strategy: str) -> None:
    said = _refused(tmp_path, strategy, lambda rank: _train(_split(7)[0], _split(rank)[1]))
    assert "different data to evaluate than worker" in said


def test_who_differs_is_named(tmp_path: Path) -> None:
    said = _refused(tmp_path, "allreduce", lambda rank: _train(_split(int(rank == 1))[0]), 3)
    named = (
        r"worker (1 has different data to train on than workers? [02]"
        r"|[02] has different .* than worker 1)"
    )
    assert re.search(named, said)


def test_another_length_is_named(tmp_path: Path) -> None:
    said = _refused(tmp_path, "allreduce", lambda rank: _train(_whole(24 - 6 * rank)))
    assert "18 samples against 24" in said or "24 samples against 18" in said


class _Made(Dataset[Any]):
    """Samples with chance in them, from every source that there is."""

    def __init__(self, seed: int = 0, own: bool = False) -> None:
        self.x = torch.randn(24, 4, generator=torch.Generator().manual_seed(seed))
        self.own = np.random.default_rng() if own else None

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        noise = torch.rand(4) + random.random() + float(np.random.rand())
        if self.own is not None:
            noise = noise + float(self.own.random())
        return self.x[at] + noise, int(self.x[at, 0] > 0)


@pytest.mark.parametrize("strategy", ["allreduce", "async"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("processes", [0, 1])
def test_chance_inside_a_set_is_no_difference(
    tmp_path: Path, strategy: str, own: bool, processes: int
) -> None:
    if HOSTS and processes:
        pytest.skip("a loader's process is forked from ranks that are threads, and may hang")

    def work(rank: int) -> None:
        torch.manual_seed(rank), random.seed(rank), np.random.seed(rank)
        _train(DataLoader(_Made(own=own), batch_size=6, shuffle=True, num_workers=processes))

    as_ranks(2, tmp_path, work, RunSettings(strategy=strategy))


def test_made_sets_that_differ_beside_the_chance_in_them_are_refused(tmp_path: Path) -> None:
    assert " differs)" in _refused(tmp_path, "allreduce", lambda rank: _train(_Made(rank)))


def test_reading_a_few_samples_leaves_the_generators_alone() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    fingerprint(as_reader(_Made()))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_what_no_number_can_tell_is_left_out(tmp_path: Path) -> None:
    class Odd(_Made):
        def __getitem__(self, at: int) -> Any:
            return object(), super().__getitem__(at)

    def collate(samples: list[Any]) -> tuple[Tensor, Tensor]:
        pairs = [pair for _, pair in samples]
        return torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs])

    loader = DataLoader(Odd(), batch_size=6, collate_fn=collate)
    as_ranks(2, tmp_path, lambda rank: _train(loader), RunSettings())
