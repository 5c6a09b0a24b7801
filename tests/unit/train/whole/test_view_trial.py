from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from phalanx.train.whole.view_trial import BatchTimes, can_be_tried, slower_whole

FEW = 1000


@pytest.mark.parametrize(
    ("times", "ratio"),
    [
        # Nearly all of it in calls of models and on their way back.
        (BatchTimes(0.001, 0.07, 0.125, 0.002, 0.002), None),
        # Half of it in reading, which each worker would do for the whole batch.
        (BatchTimes(0.05, 0.02, 0.03, 0.0, 0.0), 1.5),
        # A loss as dear as the model: what goes back is its own.
        (BatchTimes(0.0, 0.1 / 3, 0.1 / 3, 0.0, 0.1 / 3), 1.7),
        # So short that no view is faster than one process.
        (BatchTimes(0.0005, 0.0001, 0.0002, 0.0001, 0.0001), None),
    ],
)
def test_parts_where_whole_takes_longer(times: BatchTimes, ratio: float | None) -> None:
    found = slower_whole(times, 2, FEW)
    assert (found is None) is (ratio is None)
    assert ratio is None or found == pytest.approx(ratio, abs=0.1)


def test_many_parameters_cost_both_views_the_same() -> None:
    times = BatchTimes(0.05, 0.02, 0.03, 0.0, 0.0)
    few, many = slower_whole(times, 2, FEW), slower_whole(times, 2, 4_000_000)
    assert few is not None and many is not None and few > many
    assert slower_whole(times, 2, 100_000_000) is None


def test_short_steps_on_machines_that_meet_slowly() -> None:
    times = BatchTimes(0.0, 0.002, 0.003, 0.0, 0.0)
    assert slower_whole(times, 3, FEW) is None or slower_whole(times, 3, FEW) < 2
    far = slower_whole(times, 3, FEW, barrier=0.01)
    assert far is not None and far > 2


class _Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return itertools.repeat(torch.zeros(2))


def test_what_parts_would_change_or_refuse_is_not_tried() -> None:
    data = TensorDataset(torch.zeros(4, 2))
    plain, normed = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert can_be_tried([plain], DataLoader(data))
    assert not can_be_tried([plain, normed], DataLoader(data))
    endless = RandomSampler(data, replacement=True, num_samples=10**10)
    assert not can_be_tried([plain], DataLoader(data, sampler=endless))
    assert not can_be_tried([plain], DataLoader(_Endless()))
    assert not can_be_tried([plain], DataLoader(data, batch_size=None))


def test_what_cannot_be_checked_in_parts_is_not_tried() -> None:
    data = DataLoader(TensorDataset(torch.zeros(4, 2)))
    for model in (
        nn.Sequential(nn.Linear(2, 2), nn.Dropout()),
        nn.Linear(2, 2).to(torch.complex128),
        nn.Embedding(3, 2, sparse=True),
    ):
        assert not can_be_tried([model], data)
