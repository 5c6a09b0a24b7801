"""Batch norm of a shared call against torch's own, where one worker has all rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from phalanx.train.whole.batch_norm import batch_norm
from phalanx.train.whole.operators import Rows


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
