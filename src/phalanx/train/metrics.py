"""Metrics: functions of a batch's outputs and targets that return a mean over its samples."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Metric = Callable[[Tensor, Tensor], Tensor | float]


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of samples whose largest output is the target class."""
    return (outputs.argmax(dim=1) == targets).float().mean()


def is_classification(outputs: Tensor, targets: Tensor) -> bool:
    whole = not targets.is_floating_point() and targets.ndim == 1
    return whole and outputs.ndim == 2 and outputs.shape[1] > 1
