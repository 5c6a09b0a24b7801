"""Cross entropy inside a shared call: its mean is over what all workers have to classify.

Targets that are ignored, and classes that weigh more, make it another mean than that over rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from phalanx.train.whole.operators import Rows


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
