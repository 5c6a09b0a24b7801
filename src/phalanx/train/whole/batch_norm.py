"""Batch norm and cross entropy in a shared call, over the whole batch instead of a worker's rows.

One small exchange on the way forward (how many values, their mean, their spread, which are put
together as by Chan, Golub and LeVeque, "Updating formulae", 1979), and one on the way back (Ioffe
and Szegedy, "Batch Normalization", 2015, appendix; the sums are over the rows of all workers).
"""

from __future__ import annotations

from collections.abc import Callable
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
    mean, variance = mean.to(x.dtype), variance.to(x.dtype)
    found: Tensor = _Normalise.of(rows, x, weight, bias, mean, variance, count, eps)
    return found


def _statistics(rows: Rows, x: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return the count of values per channel, and each channel's mean and variance."""
    dims, number = _dims(x), x.dtype if x.dtype == torch.float64 else torch.float32
    counted, values = x.numel() // x.shape[1], x.to(number)
    mean = values.sum(dims) / counted
    centred = values - _by_channel(mean, x)
    spread = centred.mul_(centred).sum(dims) / counted  # torch.var_mean takes four times as long
    mine = torch.zeros(len(rows.sizes), 2 * x.shape[1] + 1, dtype=number, device="cpu")
    mine[rows.collective.rank] = torch.cat([mean.new_tensor([counted]), mean, spread]).cpu()
    told = rows.collective.sum(mine)
    counts = told[:, 0].to(torch.float64)
    means, spreads = told[:, 1:].to(torch.float64).chunk(2, dim=1)
    total = float(counts.sum())
    share = (counts / total).unsqueeze(1)
    whole = (share * means).sum(0)
    variance = (share * (spreads + (means - whole) ** 2)).sum(0)
    return total, whole.to(x.device, number), variance.to(x.device, number)


class _Normalise(Operator):
    """Computes ``(x - mean) / deviation * weight + bias``, where mean and deviation depend on the
    rows of all workers. What does not is left to torch's kernels for evaluations."""

    @staticmethod
    def forward(
        ctx: Any, rows: Rows, x: Tensor, weight: Tensor | None, bias: Tensor | None,
        mean: Tensor, variance: Tensor, count: float, eps: float,
    ) -> Tensor:  # fmt: skip
        ctx.rows, ctx.count, ctx.eps = rows, count, eps
        ctx.save_for_backward(x, weight, bias, mean, variance)
        return torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, variance = ctx.saved_tensors
        nothing = None, None, None, None
        if torch.is_grad_enabled():  # the script computes a gradient of this gradient
            again = _composed(ctx.rows, x, ctx.count, ctx.eps)
            if weight is not None:
                again = again * _by_channel(weight.to(x.dtype), x)
            wanted = [x] if weight is None else [x, weight]
            found = torch.autograd.grad(again, wanted, gradient, create_graph=True)
            of_bias = None if bias is None else gradient.sum(_dims(x))
            return None, found[0], (None if weight is None else found[1]), of_bias, *nothing
        ones = torch.ones_like(mean) if weight is None else weight.to(x.dtype)
        direct, second, first = torch.ops.aten.native_batch_norm_backward(
            gradient.contiguous(), x, ones, mean, variance, None, None, False, ctx.eps,
            [True, True, True],
        )  # fmt: skip
        (whole,) = summed(ctx.rows, [torch.cat([first, second])], [first.new_empty(2 * len(first))])
        assert whole is not None
        by_mean, by_spread = whole.to(x.dtype).chunk(2)
        scale = (variance + ctx.eps).rsqrt()
        slope = ones * scale * scale * by_spread / ctx.count
        level = ones * scale * by_mean / ctx.count - mean * slope
        direct.addcmul_(x, _by_channel(slope, x), value=-1.0).sub_(_by_channel(level, x))
        of_weight = None if weight is None else second.to(weight.dtype)
        return None, direct, of_weight, None if bias is None else first.to(bias.dtype), *nothing


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _composed(rows: Rows, x: Tensor, count: float, eps: float) -> Tensor:
    """Compute the same with operations whose derivatives autograd knows."""

    def mean_of(values: Tensor) -> Tensor:
        own = values.sum(_dims(x), keepdim=True)
        (total,) = summed(rows, [own], [own])
        assert total is not None
        return entered(rows, [total / count])[0]

    centred = x - mean_of(x)
    return centred * (mean_of(centred * centred) + eps).rsqrt()


def _dims(x: Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def cross_entropy(
    rows: Rows,
    plain: Callable[..., Tensor],
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``torch.nn.functional.cross_entropy``; the mean of what it returns over rows is the whole."""
    given = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    if reduction != "mean" or size_average is not None or reduce is not None:
        return plain(
            input, target, weight, size_average, reduce=reduce, reduction=reduction, **given
        )
    counted = target != ignore_index
    own = counted.sum() if weight is None else weight.detach()[target[counted]].sum()
    total = rows.collective.sum(own.reshape(1).to("cpu", torch.float64))
    whole = total[0].to(input.device, input.dtype) * rows.weight
    return plain(input, target, weight, reduction="sum", **given) / whole
