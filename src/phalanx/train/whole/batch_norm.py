"""Batch norm inside a shared call: the statistics of the whole batch, not of this worker's rows.

One small exchange on the way forward (how many values, their mean, their spread, which are put
together as by Chan, Golub and LeVeque, "Updating formulae", 1979), and one on the way back (Ioffe
and Szegedy, "Batch Normalization", 2015, appendix; the sums are over the rows of all workers).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phalanx.train.whole.operators import Operator, Rows, entered, summed


def batch_norm(
    rows: Rows,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """``torch.nn.functional.batch_norm`` with ``training=True``, over the rows of all workers."""
    count, mean, variance = _statistics(rows, x.detach())
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            unbiased = variance * (count / max(1.0, count - 1.0))
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    scale = (variance + eps).rsqrt()
    normal: Tensor = _Normalise.of(
        rows, x, mean.to(x.dtype).view(shape), scale.to(x.dtype).view(shape), count, eps
    )
    if weight is not None:
        normal = normal * weight.to(x.dtype).view(shape)
    return normal if bias is None else normal + bias.to(x.dtype).view(shape)


def _statistics(rows: Rows, x: Tensor) -> tuple[float, Tensor, Tensor]:
    """Of each channel: how many values, their mean, their variance."""
    dims = _dims(x)
    number = x.dtype if x.dtype == torch.float64 else torch.float32
    counted = x.numel() // x.shape[1]
    spread, mean = torch.var_mean(x.to(number), dims, correction=0)
    mine = torch.zeros(len(rows.sizes), 2 * x.shape[1] + 1, dtype=number, device="cpu")
    mine[rows.rank] = torch.cat([mean.new_tensor([counted]), mean, spread]).cpu()
    told = rows.collective.sum(mine)
    counts = told[:, 0].to(torch.float64)
    means, spreads = told[:, 1:].to(torch.float64).chunk(2, dim=1)
    total = float(counts.sum())
    share = (counts / total).unsqueeze(1)
    whole = (share * means).sum(0)
    variance = (share * (spreads + (means - whole) ** 2)).sum(0)
    return total, whole.to(x.device, number), variance.to(x.device, number)


class _Normalise(Operator):
    """``(x - mean) * scale``, where mean and scale depend on the rows of all workers."""

    @staticmethod
    def forward(
        ctx: Any, rows: Rows, x: Tensor, mean: Tensor, scale: Tensor, count: float, eps: float
    ) -> Tensor:
        ctx.rows, ctx.count, ctx.eps = rows, count, eps
        ctx.save_for_backward(x, mean, scale)
        return (x - mean) * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, mean, scale = ctx.saved_tensors
        nothing = None, None, None, None
        if torch.is_grad_enabled():  # the script wants the gradient of this gradient
            again = _composed(ctx.rows, x, ctx.count, ctx.eps)
            (found,) = torch.autograd.grad(again, x, gradient, create_graph=True)
            return None, found, *nothing
        normal = (x - mean) * scale
        dims = _dims(x)
        sums = torch.cat([gradient.sum(dims), (gradient * normal).sum(dims)])
        (whole,) = summed(ctx.rows, [sums], [sums])
        assert whole is not None
        first, second = (half.view(mean.shape) / ctx.count for half in whole.chunk(2))
        return None, (gradient - first - normal * second) * scale, *nothing


def _composed(rows: Rows, x: Tensor, count: float, eps: float) -> Tensor:
    """The same of operations that autograd knows all derivatives of."""

    def mean_of(values: Tensor) -> Tensor:
        own = values.sum(_dims(x), keepdim=True)
        (total,) = summed(rows, [own], [own])
        assert total is not None
        return entered(rows, [total / count])[0]

    centred = x - mean_of(x)
    return centred * (mean_of(centred * centred) + eps).rsqrt()


def _dims(x: Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]
