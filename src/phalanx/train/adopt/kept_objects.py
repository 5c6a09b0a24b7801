"""Schedulers, scalers and averaged models that an adopted script makes: saved and restored, too.

A resumed script runs from its start, and goes through the epochs before the checkpoint without a
batch. Its schedulers advance meanwhile; then their state is replaced by that of the checkpoint.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from phalanx.core.errors import InputError
from phalanx.train.checkpoint.kept_state import WHOLE, Keeper, pack

_KINDS = (LRScheduler, GradScaler, AveragedModel)
_made = threading.local()


def note_what_is_made() -> None:
    """Record such objects from now on; those of one kind are told apart by order of creation."""
    _made.things = []
    for kind in _KINDS:
        setattr(kind, "__new__", staticmethod(_new))  # noqa: B010


def _new(kind: type, *_args: Any, **_kwargs: Any) -> Any:
    """Make and record an object. Not in ``__init__``, which copies and subclasses may not call."""
    made: Any = object.__new__(kind)
    _made.__dict__.setdefault("things", []).append((weakref.ref(made), kind.__name__))
    return made


class OrderState:
    """The state of torch's random numbers when the current pass's order was drawn, the passes that
    the script left early, and whether the script sees whole batches."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self.drawn_from = torch.get_rng_state()
        self.left: dict[int, int] = {}
        """After how many batches the script left a pass, by the number of the pass."""

    def state_dict(self) -> dict[str, Any]:
        return {"drawn_from": self.drawn_from, "left": self.left, WHOLE: self._whole}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the state is needed before the order is drawn, and is read there."""


def advice_on_skipped(error: BaseException) -> str:
    """A hint to print after an error of a resumed script that has had no batch yet, or ``""``."""
    if not isinstance(error, NameError):
        return ""
    return (
        "\nThe resumed script skips the epochs before its checkpoint: its loop over the data has "
        "no batch there, and sets none of its variables.\n"
        "hint: Give the variable a value before the loop, such as loss = None, and use it only if "
        "it has another one.\n"
    )


def keepers_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Keeper]:
    """Schedulers of these optimizers, gradient scalers and averaged copies, by name."""
    found: dict[str, Keeper] = {}
    numbers: Counter[str] = Counter()
    for ref, kind in _made.things:
        thing, name = ref(), f"{kind}-{numbers[kind]}"
        numbers[kind] += 1
        owner = getattr(thing, "optimizer", None)
        others = isinstance(thing, LRScheduler) and all(owner is not one for one in optimizers)
        if thing is not None and not others:
            with suppress(InputError):  # an object that a checkpoint cannot hold begins anew
                pack(name, thing.state_dict(), {})
                found[name] = thing
    return found
