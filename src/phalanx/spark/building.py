"""Models, optimizers and losses by their names: no object of a user is pickled."""

from __future__ import annotations

import importlib
import os
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.settings import KERAS_BACKEND
from phalanx.spark.messages import ModelSource

Made = TypeVar("Made")
CLASS_LOSSES = ("cross_entropy", "nll_loss", "multi_margin_loss")
"""Losses whose targets are numbers of classes: the prediction is the largest output's class."""
LOSSES = [
    *(name for name in dir(nn.functional) if name.endswith("_loss") and name[0] != "_"),
    *("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
]
OPTIMIZERS = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
}

_SHAPES = re.compile(r"shape|size|dimension|channels|out of bounds|\dD\b")
_trusted: set[str] = set()


def trust(*makers: str | Callable[..., Any]) -> None:
    """Let saved models and estimators that are loaded later name these functions and classes."""
    _trusted.update(
        one if isinstance(one, str) else f"{one.__module__}:{one.__qualname__}" for one in makers
    )


def check_trusted(folder: str, model: str | None, optimizer: str) -> None:
    """Refuse names in a folder, perhaps another user's, that this process does not trust."""
    for name in (model, None if optimizer in OPTIMIZERS else optimizer):
        if name is not None and name not in _trusted:
            raise InputError(
                f"{folder} names {name!r}, which would run as code, and it is not trusted",
                f"If you know it and its module, call phalanx.spark.trust({name!r}) before.",
            )


def named(path: str, what: str) -> Callable[..., Any]:
    """Return the object that ``module:function`` names."""
    module, _, name = path.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that the user's own module needs
        raise InputError(
            f"{what}={path!r}: there is no module {module!r} here",
            "Send it to the executors: spark.sparkContext.addPyFile(FILE).",
        ) from None
    except AttributeError:
        names = [known for known in dir(importlib.import_module(module)) if known[0] != "_"]
        raise InputError(
            f"{what}={path!r}: {module} has no {name!r}", did_you_mean(name, names)
        ) from None
    return found


def torch_model(source: ModelSource) -> nn.Module:
    return _made(nn.Module, "model", named(str(source.model), "model"), **source.model_options)


def optimizer_of(source: ModelSource, model: nn.Module) -> torch.optim.Optimizer:
    own = ":" in source.optimizer
    maker = named(source.optimizer, "optimizer") if own else OPTIMIZERS[source.optimizer]
    given = model if own else model.parameters()
    return _made(torch.optim.Optimizer, "optimizer", maker, given, **source.optimizer_options)


def _made(
    kind: type[Made], what: str, maker: Callable[..., Any], *given: Any, **options: Any
) -> Made:
    try:
        made = maker(*given, **options)
    except TypeError as error:
        inside = error.__traceback__ and error.__traceback__.tb_next
        if inside and maker not in OPTIMIZERS.values():
            raise
        raise InputError(
            f"the {what} does not take these options: {error}", f"Correct {what}_options."
        ) from None
    if not isinstance(made, kind):
        raise InputError(
            f"the function of {what}= returned a {type(made).__name__}",
            f"Return a {kind.__module__}.{kind.__name__}.",
        )
    return made


def loss_of(source: ModelSource) -> Callable[[Tensor, Tensor], Tensor]:
    loss: Callable[..., Tensor] = getattr(nn.functional, source.loss)
    if source.loss in CLASS_LOSSES:
        return lambda outputs, y: loss(outputs, y.long())

    def shaped(outputs: Tensor, y: Tensor) -> Tensor:
        # Otherwise (n, 1) and (n) would silently make a loss of all pairs.
        same = y.view_as(outputs) if y.numel() == outputs.numel() else y
        return loss(outputs, same.to(outputs.dtype))

    return shaped


def check_names(source: ModelSource) -> None:
    """Check what the driver can without the user's modules."""
    if source.model is not None and not all(source.model.partition(":")):
        raise InputError(
            f"model={source.model!r} names no function", 'Write model="module:function".'
        )
    for what, name, names in (
        ("loss", source.loss, LOSSES), ("optimizer", source.optimizer, list(OPTIMIZERS)),
    ):  # fmt: skip
        if name not in names and (what == "loss" or ":" not in name):
            raise InputError(f"{what}={name!r} is unknown", did_you_mean(name, names))


def as_inputs(column: Tensor, model: Any) -> Tensor:
    """Convert a column to the model's type; whole numbers, such as those of words, stay whole."""
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    return column.to(next(floats, torch.float32)) if column.is_floating_point() else column.long()


def check_numbers(name: str, column: Any) -> None:
    if not isinstance(column, Tensor):
        raise InputError(
            f"column {name!r} has rows of different lengths, or no numbers",
            "Give all rows as many numbers: array<float>, or a vector.",
        )


def numbers(shape: Sequence[int] | None) -> str:
    return " x ".join(map(str, shape or [1]))


def check_misfit(error: Exception, source: ModelSource, x: Tensor, y: Tensor) -> None:
    """Raise a short error instead of a library's traceback, if ``error`` is about shapes."""
    said = (str(error).splitlines() or [""])[0]
    if type(error) in (RuntimeError, ValueError, IndexError) and _SHAPES.search(said):
        traceback.print_exc()
        there = f"{numbers(x.shape[1:])} in {source.features!r}, {numbers(y.shape[1:])}"
        raise InputError(
            f"the model, or its loss, does not take these rows ({there} in {source.label!r}): "
            f"{said.rstrip('.')} (more is in the executor's log)",
            "Give rows as the model was made for, or make it for these (model_options=).",
        ) from None


def keras_model(file: Path) -> Any:
    os.environ.setdefault(KERAS_BACKEND, "torch")
    import keras

    return keras.saving.load_model(str(file))
