"""Metrics: functions of outputs and targets, of a batch at a time or of the whole set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.data.structure import map_tensors

Metric = Callable[[Any, Any], Tensor | float]


def accuracy(outputs: Any, targets: Tensor) -> Tensor:
    """The share of samples whose largest output is the target class."""
    scores: Tensor = logits_of(outputs)
    return (scores.argmax(dim=1) == targets).float().mean()


def logits_of(outputs: Any) -> Any:
    """The scores among a model's outputs, where they are at one of the usual places."""
    for name in ("logits", "out"):
        if isinstance(outputs, Mapping) and name in outputs:
            return outputs[name]
        if not isinstance(outputs, Tensor) and isinstance(getattr(outputs, name, None), Tensor):
            return getattr(outputs, name)
    return outputs[0] if isinstance(outputs, list | tuple) and outputs else outputs


def is_classification(outputs: Any, targets: Any) -> bool:
    scores = logits_of(outputs)
    if not isinstance(scores, Tensor) or not isinstance(targets, Tensor):
        return False
    whole = not targets.is_floating_point() and targets.ndim == 1
    return whole and scores.ndim == 2 and scores.shape[1] > 1 and len(scores) == len(targets)


def whole_set(metric: Any) -> Metric:
    """A metric of all outputs and targets at once; one with ``compute`` becomes such a function."""
    if not callable(getattr(metric, "compute", None)):
        return metric  # type: ignore[no-any-return]

    def compute(outputs: Any, targets: Any) -> Tensor | float:
        where = getattr(metric, "device", None)
        if where is not None:
            outputs, targets = map_tensors((outputs, targets), lambda t: t.to(where))
        if callable(getattr(metric, "reset", None)):
            metric.reset()
        metric.update(outputs, targets)
        return metric.compute()  # type: ignore[no-any-return]

    return compute


def one_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"a metric returned a {type(value).__name__}, not one number",
            "Return one number; use a separate metric for each number.",
        ) from None
