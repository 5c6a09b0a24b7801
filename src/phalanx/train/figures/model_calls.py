"""Calls a model with a batch, whose inputs and target it finds, and has common metrics."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.data.structure import map_tensors

Forward = Callable[[nn.Module, Any], tuple[Any, Any]]
"""A function from a model and a batch to (outputs, targets)."""
TARGETS = ("labels", "label", "targets", "target", "y")
REMEDY = "Specify it: forward=lambda model, batch: (model(batch['image']), batch['label'])"


def call_model(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """Return outputs and targets of ``batch`` as scripts usually mean it. The target is the last of
    several parts, or an entry of one of the usual names. A batch without a target is its own."""
    if dataclasses.is_dataclass(batch) and not isinstance(batch, Mapping):
        batch = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    if isinstance(batch, Mapping):
        name = next((name for name in TARGETS if name in batch), None)
        return _named(model, batch, name), batch if name is None else batch[name]
    if not isinstance(batch, list | tuple):
        return model(batch), getattr(batch, "y", batch)
    inputs = batch[:-1] if len(batch) > 1 else batch
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return _named(model, inputs[0], None), batch[-1]
    if len(inputs) > 1:
        _check(model, len(inputs))
    return model(*inputs), batch[-1]


def _named(model: nn.Module, batch: Mapping[str, Any], target: str | None) -> Any:
    parameters = inspect.signature(model.forward).parameters.values()
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    needed = {p.name for p in parameters if p.name in named and p.default is p.empty}
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    given = {name: batch[name] for name in batch if anything or name in named}
    if given and needed <= set(given):
        return model(**given)
    inputs = [batch[name] for name in batch if name != target]
    if len(inputs) == 1 and len(needed) <= 1:
        return model(inputs[0])
    raise InputError(
        f"the model takes {', '.join(sorted(needed))}, but the batch has {', '.join(batch)}", REMEDY
    )


def _check(model: nn.Module, inputs: int) -> None:
    try:
        inspect.signature(model.forward).bind(*[None] * inputs)
    except TypeError:
        raise InputError(
            f"a batch has {inputs + 1} parts: which does the model take?", REMEDY
        ) from None


def own_loss(outputs: Any, _targets: Any) -> Tensor:
    """Return the loss that a model computes itself, as those of Hugging Face do."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if found is None and isinstance(outputs, list | tuple) and isinstance(outputs[0], Tensor):
        found = outputs[0] if outputs[0].ndim == 0 else None
    if not isinstance(found, Tensor):
        raise InputError("fit: loss is missing, and the model's outputs have none", "Give loss=.")
    return found


Metric = Callable[[Any, Any], Tensor | float]


def accuracy(outputs: Any, targets: Tensor) -> Tensor:
    """Return the share of samples whose largest output is the target class."""
    scores: Tensor = logits_of(outputs)
    return (scores.argmax(dim=1) == targets).float().mean()


def logits_of(outputs: Any) -> Any:
    """Return the scores among a model's outputs, if they are at one of the usual places."""
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
    """Return a metric of all outputs and targets at once, also for one with ``compute``."""
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
