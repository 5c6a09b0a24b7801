"""What an adopted script has made beside its models and optimizers: saved and resumed with them.

A resumed script runs from its start, and goes through the epochs before the checkpoint without a
batch. Its schedulers advance meanwhile; what they are then is replaced by what they were.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from phalanx.core.errors import InputError
from phalanx.train.checkpoint.kept_state import Keeper, pack

ORDER = "order"


class OrderState:
    """Torch's numbers at the moment when the order of the pass in hand was drawn."""

    def __init__(self) -> None:
        self.drawn_from = torch.get_rng_state()

    def state_dict(self) -> dict[str, Any]:
        return {"drawn_from": self.drawn_from}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Too late here: it is needed before the order is drawn."""


def keepers_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Keeper]:
    """Schedulers of these optimizers, gradient scalers and averaged copies, by name."""
    found: dict[str, Keeper] = {}
    numbers: Counter[str] = Counter()
    kinds = (LRScheduler, GradScaler, AveragedModel)
    things: list[Any] = [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]
    for thing in sorted(things, key=lambda thing: _place(thing, optimizers)):
        kind = type(thing).__name__
        name = f"{kind}-{numbers[kind]}"
        if _place(thing, optimizers) < 0:
            continue
        with suppress(InputError):  # what a checkpoint cannot hold begins anew
            pack(name, thing.state_dict(), {})
            found[name] = thing
            numbers[kind] += 1
    return found


def _place(thing: Any, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Behind the optimizer that it belongs to; -1 if that is none of these."""
    if not isinstance(thing, LRScheduler):
        return len(optimizers)
    owner = getattr(thing, "optimizer", None)
    return next((i for i, known in enumerate(optimizers) if known is owner), -1)
