"""Finds what an adopted script trains: the models that own its optimizers' parameters; and the
schedulers, scalers and averaged copies that are saved and resumed with them.

A resumed script runs from its start, and gets no batches in the epochs before the checkpoint. Its
schedulers advance meanwhile, so their state is then replaced by the saved one.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from phalanx.adapters.torch_models import parameters_of
from phalanx.core import words
from phalanx.core.errors import InputError
from phalanx.train.checkpoint.kept_state import WHOLE, Keeper, pack

ALONE = "or run the script alone, with python."


class Leftover(nn.Module):
    """Holds parameters that an optimizer trains and no module owns."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.values = nn.ParameterList()
        for number, parameter in enumerate(parameters):
            # Not by ``append``, which would make a new parameter from a plain tensor.
            self.values._parameters[str(number)] = parameter  # type: ignore[assignment]


def models_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[nn.Module]:
    """Return the outermost modules with a parameter of the optimizers, in the optimizers' order."""
    place = {id(p): number for number, p in reversed(list(enumerate(parameters_of(optimizers))))}
    owners = [
        module
        for module in gc.get_objects()
        if issubclass(type(module), nn.Module)  # isinstance would ask objects for their class
        and "_parameters" in module.__dict__
        and any(id(p) in place for p in module.parameters())
    ]
    inner = {id(child) for m in owners for child in m.modules() if child is not m}
    roots = [module for module in owners if id(module) not in inner]
    roots.sort(key=lambda m: min(place[id(p)] for p in m.parameters() if id(p) in place))
    owned = {id(p) for module in roots for p in module.parameters()}
    left = [p for p in parameters_of(optimizers) if id(p) not in owned]
    return [*roots, Leftover(left)] if left else roots


def stand_in_for(loss: torch.Tensor) -> torch.optim.Optimizer | None:
    """Return an optimizer that changes nothing, with the parameters that ``loss`` depends on, for a
    script that updates them itself."""
    found, seen, left = [], set(), [loss.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), nn.Parameter):
            found.append(leaf)
        left += [following for following, _ in node.next_functions]
    return torch.optim.SGD(found[::-1], lr=0.0) if found else None


def data_of(loader: DataLoader[Any]) -> str:
    kind = type(loader.dataset).__name__
    try:
        return f"{kind} of {len(loader.dataset)} samples"  # type: ignore[arg-type]
    except TypeError:  # a stream has no length
        return kind


def describe(
    models: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    data: str,
    batch: int | None,
    epochs: int | None,
    workers: int,
    *,
    whole: bool,
    slower: float | None = None,
) -> list[str]:
    """Describe what was found, for the first lines of a run; ``slower``: view ``parts`` was chosen,
    because a step would take so many times as long in view ``whole``."""
    sizes = [
        f"{type(m).__name__} ({words.count(sum(p.numel() for p in m.parameters()))} parameters)"
        for m in models
    ]
    kinds = [type(o).__name__ for o in optimizers]
    if all(group["lr"] == 0.0 for o in optimizers for group in o.param_groups):
        kinds = ["updated by the script itself"]
    length = "" if epochs is None else f", {epochs} epochs"
    size = "" if batch is None else f", global batch {batch}"
    found = [f"adopted: {', '.join(sizes)}; {', '.join(kinds)}; {data}{size}{length}"]
    if workers > 1 and any(isinstance(part, _DropoutNd) for m in models for part in m.modules()):
        found.append(
            "dropout: each worker draws its own numbers; the run ends near, not at, what one "
            "process trains, and repeats exactly only with equal shares"
        )
    if slower is not None:
        found.append(
            "view parts: each worker sees its part of a batch, and the loss of that part, because "
            f"a step in view whole would take {slower:.1f} times as long; --view whole shows the "
            "script all of each batch"
        )
    elif workers > 1 and not whole:
        found.append("figures that the script prints are of worker 0's part of the data")
    normed = any(isinstance(part, _BatchNorm) for m in models for part in m.modules())
    if normed and workers > 1 and not whole:
        found.append("batch norm: statistics of each worker's part of a batch, averaged per epoch")
    return found


def stray_step(optimizer: torch.optim.Optimizer, *, inside: bool) -> InputError:
    """Make the error for a step that cannot be shared out; ``inside``: in a loader's loop."""
    if inside:
        return InputError(
            f"the script made an optimizer ({type(optimizer).__name__}) inside the loop over its "
            "data",
            "Make it before the loop over the DataLoader.",
        )
    return InputError(
        "the script called optimizer.step() on a batch that Phalanx cannot share out: it "
        "does not come from a training loop over a DataLoader",
        "Call model.train() before the loop; without a DataLoader use phalanx.join and "
        f"run.step(weight=…), {ALONE}",
    )


_KINDS = (LRScheduler, GradScaler, AveragedModel)
_made = threading.local()


def note_what_is_made() -> None:
    """Note all objects of ``_KINDS`` made from now on; those of one kind differ by their order."""
    _made.things = []
    for kind in _KINDS:
        setattr(kind, "__new__", staticmethod(_new))  # noqa: B010


def _new(kind: type, *_args: Any, **_kwargs: Any) -> Any:
    """Make an object and note it; copies and subclasses may skip ``__init__``."""
    made: Any = object.__new__(kind)
    _made.__dict__.setdefault("things", []).append((weakref.ref(made), kind.__name__))
    return made


class OrderState:
    """The state of torch's generator when the order of the present pass was drawn, the passes that
    the script left early, and its view of a batch."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self.drawn_from = torch.get_rng_state()
        self.left: dict[int, int] = {}
        """The number of batches after which a pass was left, by the pass's number."""

    def state_dict(self) -> dict[str, Any]:
        return {"drawn_from": self.drawn_from, "left": self.left, WHOLE: self._whole}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the state is needed earlier, before the order is drawn."""


def advice_on_skipped(error: BaseException) -> str:
    """Advise on an error of a resumed script that has had no batch yet."""
    if not isinstance(error, NameError):
        return ""
    return (
        "\nThe resumed script skips the epochs before its checkpoint: its loop over the data has "
        "no batch there, and sets none of its variables.\n"
        "hint: Give the variable a value before the loop, such as loss = None, and use it only if "
        "it has another value.\n"
    )


def keepers_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Keeper]:
    """Return schedulers of these optimizers, gradient scalers and averaged copies, by name."""
    found: dict[str, Keeper] = {}
    numbers: Counter[str] = Counter()
    for ref, kind in _made.things:
        thing, name = ref(), f"{kind}-{numbers[kind]}"
        numbers[kind] += 1
        owner = getattr(thing, "optimizer", None)
        others = isinstance(thing, LRScheduler) and all(owner is not one for one in optimizers)
        if thing is not None and not others:
            with suppress(InputError):  # what a checkpoint cannot hold starts afresh
                pack(name, thing.state_dict(), {})
                found[name] = thing
    return found
