"""Which view is worth it, and batch norm of a shared call against torch's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from phalanx.train.whole.batch_norm import batch_norm
from phalanx.train.whole.operators import Rows
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


class _Alone:
    rank, workers = 0, 1

    def sum(self, flat: Tensor, meaning: int = 0) -> Tensor:
        return flat.clone()

    def sum_written(
        self, dtype: torch.dtype, count: int, write: Callable[[Tensor], object], meaning: int = 0
    ) -> Tensor:
        row = torch.empty(count, dtype=dtype)
        write(row)
        return row


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(8, 5), (8, 5, 7), (8, 5, 4, 3)])
def test_values_gradients_and_their_gradients(shape: tuple[int, ...], affine: bool) -> None:
    torch.manual_seed(0)
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    norm = kind(5, affine=affine).double()
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    means, variances = norm.running_mean.clone(), norm.running_var.clone()
    mine = [p.detach().clone().requires_grad_() for p in norm.parameters()]
    x = torch.randn(shape, dtype=torch.float64) * 3 + 2
    theirs, ours = x.clone().requires_grad_(), x.clone().requires_grad_()

    wanted = norm(theirs)
    rows = Rows(_Alone(), (8,))
    weight, bias = mine or (None, None)
    found = batch_norm(rows, ours, means, variances, weight, bias, 0.1, norm.eps)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(means, norm.running_mean)
    torch.testing.assert_close(variances, norm.running_var)

    for again in (False, True):
        a = torch.autograd.grad(
            wanted.pow(3).sum(), [theirs, *norm.parameters()], create_graph=again, retain_graph=True
        )
        b = torch.autograd.grad(
            found.pow(3).sum(), [ours, *mine], create_graph=again, retain_graph=True
        )
        torch.testing.assert_close(b, a)
    (second,) = torch.autograd.grad(a[0].pow(2).sum(), theirs)
    torch.testing.assert_close(torch.autograd.grad(b[0].pow(2).sum(), ours)[0], second)
