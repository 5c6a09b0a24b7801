"""A script that still calls ``optimizer.step()`` would update its worker alone: it is told so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from phalanx.core.errors import InputError


class OwnSteps:
    """Watches the user's optimizers for steps that are not ours."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._ours = False
        self._hooks = [o.register_step_pre_hook(self._check) for o in optimizers]

    @contextmanager
    def allowed(self) -> Iterator[None]:
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _check(self, *_: Any) -> None:
        if not self._ours:
            raise InputError(
                "the script called optimizer.step() itself, for this worker alone",
                "Use run.step(): it agrees with the other workers first, and zeroes the gradients.",
            )
