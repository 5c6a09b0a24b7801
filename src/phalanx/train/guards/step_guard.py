"""What a script does with its optimizers while others update the parameters for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from phalanx.core.errors import InputError
from phalanx.train.engine.script_optimizers import ScriptOptimizers


class Inside:
    """Whether a block of code is being executed: ``with inside:``, also one in another.

    Cheaper than a generator, once in every step.
    """

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def __bool__(self) -> bool:
        return self._depth > 0


class StepGuard:
    """Refuses steps that are not ours, and keeps ``state_dict`` true."""

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], shared: ScriptOptimizers, ours: Inside
    ) -> None:
        self._ours, self._shared = ours, shared
        self._hooks = [o.register_step_pre_hook(self._check) for o in optimizers]
        for index, optimizer in enumerate(optimizers):
            self._hooks.append(optimizer.register_state_dict_pre_hook(partial(self._ask, index)))
            self._hooks.append(
                optimizer.register_load_state_dict_post_hook(partial(self._load, index))
            )

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _check(self, *_: Any) -> None:
        if not self._ours:
            raise InputError(
                "the script called optimizer.step() itself, for this worker alone",
                "Use run.step(): it agrees with the other workers first, and zeroes the gradients "
                "(with a GradScaler: run.step(scaler=scaler)).",
            )

    def _ask(self, index: int, *_: Any) -> None:
        if not self._ours:
            self._shared.write(index)

    def _load(self, index: int, *_: Any) -> None:
        if not self._ours:
            self._shared.read(index)
