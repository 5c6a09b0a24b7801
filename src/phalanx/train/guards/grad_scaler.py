"""``torch.amp.GradScaler`` in a script's own loop.

``scaler.step(optimizer)`` checks this worker's gradients alone, and would then step alone. For an
optimizer that joined it becomes a step of all: gradients are unscaled before they are exchanged,
and all workers that step together tell their scalers the same, so that their scales stay alike.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler, OptState

from phalanx.core.errors import InputError
from phalanx.sync.strategies.strategy import Timing
from phalanx.train.guards.nonfinite import NonFinite

_plain_step = GradScaler.step
_joined: weakref.WeakKeyDictionary[torch.optim.Optimizer, Callable[[GradScaler], None]]
_joined = weakref.WeakKeyDictionary()


def _step(
    self: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
) -> float | None:
    step = _joined.get(optimizer)
    if step is None:
        return _plain_step(self, optimizer, *args, **kwargs)
    step(self)
    return None


class Scaling:
    """The scalers of a run's optimizers."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        step: Callable[..., None],
        nonfinite: NonFinite,
        own: GradScaler | None = None,
    ) -> None:
        """``own``: of the run itself; its gradients are divided where they are copied out."""
        self._optimizers, self._nonfinite, self._own = optimizers, nonfinite, own
        self._scalers: dict[int, GradScaler] = {}
        self._updates = self._one = len(optimizers) == 1
        for optimizer in optimizers:
            _joined[optimizer] = partial(self._by_scaler, step, optimizer)
        GradScaler.step = _step  # type: ignore[method-assign]

    def _by_scaler(
        self, step: Callable[..., None], optimizer: torch.optim.Optimizer, scaler: GradScaler
    ) -> None:
        """``scaler.step(optimizer)``: the script itself updates the scaler."""
        self._updates = False
        step(optimizer, scaler=scaler)

    def before_step(self, index: int, scaler: GradScaler | None) -> float:
        """Of optimizer ``index``; returns what the losses were multiplied by."""
        if scaler is None or not scaler.is_enabled():
            return 1.0
        self._scalers[index] = scaler
        if scaler is self._own:
            return 1.0
        optimizer = self._optimizers[index]
        stage = scaler._per_optimizer_states[id(optimizer)]["stage"]
        if stage is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if scaler.is_enabled() and stage is OptState.READY:  # else the script has done so itself
            scaler.unscale_(optimizer)
        return scaler.get_scale()

    def after_step(self, scaler: GradScaler | None) -> None:
        updates, self._updates = self._updates, self._one
        updates = updates or scaler is self._own
        if updates and scaler is not None and scaler.is_enabled():
            scaler.update()

    def chosen(self, given: GradScaler | None) -> GradScaler | None:
        """For a step that was ``given`` this one, or none."""
        if self._own is None:
            return given
        if given is not None and given.is_enabled():
            raise InputError(
                "the script has a GradScaler of its own, and --precision float16 scales losses too",
                "Leave out one of them.",
            )
        return self._own

    def on_step(self, index: int, timing: Timing) -> None:
        """The scaler hears what all workers found."""
        scaler = self._scalers.get(index)
        self._nonfinite.scale = 1.0 if scaler is None else scaler.get_scale()
        if scaler is not None:
            _tell(scaler, self._optimizers[index], timing.refused is not None)
        if timing.judged:
            self._nonfinite.stepped(index, timing)

    def end(self) -> None:
        for optimizer in self._optimizers:
            _joined.pop(optimizer, None)


def refuse_hooks(models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Of a script, in a backward pass of a loss that is scaled for it."""
    members = (p for o in optimizers for g in o.param_groups for p in g["params"])
    modules = (module for model in models for module in model.modules())
    if any(map(_is_hooked, members)) or any(
        module._backward_hooks or module._backward_pre_hooks for module in modules
    ):
        raise InputError(
            "the script has hooks that see gradients in the backward pass, where --precision "
            "float16 has them multiplied by its scale",
            "Read or change gradients after run.backward(error), or use --precision bfloat16.",
        )


def _is_hooked(parameter: torch.Tensor) -> bool:
    after = parameter._post_accumulate_grad_hooks or {}
    others = (h for h in after.values() if not getattr(h, "__module__", "").startswith("phalanx."))
    return bool(parameter._backward_hooks) or any(others)


def _tell(scaler: GradScaler, optimizer: torch.optim.Optimizer, refused: bool) -> None:
    """What the workers found together is what the scaler goes by."""
    if scaler.is_enabled() and scaler._scale is not None:
        state = scaler._per_optimizer_states[id(optimizer)]
        found = torch.full((), float(refused), device=scaler._scale.device)
        state["found_inf_per_device"] = {found.device: found}
        state["stage"] = OptState.STEPPED
