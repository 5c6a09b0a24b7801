"""Supports ``torch.amp.GradScaler``, in a script's own loop and as the loss scale of ``float16``.

``scaler.step(optimizer)`` checks this worker's gradients alone, and would then step alone. For an
optimizer that joined it becomes a common step: gradients are unscaled before they are exchanged,
and all workers that step together report the same to their scalers, so that scales stay equal.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler, OptState

from phalanx.adapters.torch_models import parameters_of
from phalanx.core.errors import InputError
from phalanx.sync.state.gradient_values import are_finite
from phalanx.sync.state.gradients import get_grad
from phalanx.sync.strategy import Timing
from phalanx.train.step.nonfinite import NonFinite

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
        """Watch the optimizers; copying gradients removes the scale of ``own``, the run's
        scaler."""
        self._optimizers, self._nonfinite, self.own = optimizers, nonfinite, own
        self.scalers: dict[int, GradScaler] = {}
        """The scaler with which each optimizer's steps were taken."""
        self._updates = self._one = len(optimizers) == 1
        for optimizer in optimizers:
            _joined[optimizer] = partial(self._by_scaler, step, optimizer)
        GradScaler.step = _step  # type: ignore[method-assign]

    def _by_scaler(
        self, step: Callable[..., None], optimizer: torch.optim.Optimizer, scaler: GradScaler
    ) -> None:
        """Do ``scaler.step(optimizer)``; the script itself updates the scaler."""
        self._updates = False
        step(optimizer, scaler=scaler)

    def before_step(self, index: int, scaler: GradScaler | None) -> float:
        """Unscale for a step of optimizer ``index``; return what the losses were multiplied by."""
        if scaler is None or not scaler.is_enabled():
            return 1.0
        self.scalers[index] = scaler
        if scaler is self.own:
            return 1.0
        optimizer = self._optimizers[index]
        stage = scaler._per_optimizer_states[id(optimizer)]["stage"]
        if stage is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if scaler.is_enabled() and stage is OptState.READY:  # the script has not unscaled itself
            scaler.unscale_(optimizer)
        return scaler.get_scale()

    def after_step(self, scaler: GradScaler | None) -> None:
        updates, self._updates = self._updates, self._one
        updates = updates or scaler is self.own
        if updates and scaler is not None and scaler.is_enabled():
            scaler.update()

    def chosen(self, given: GradScaler | None) -> GradScaler | None:
        """Return the run's own scaler, if it has one; refuse one that is ``given`` as well."""
        if given is not None and given.is_enabled():
            raise InputError(
                "the script has a GradScaler of its own, and --precision float16 scales losses too",
                "Leave out one of them.",
            )
        return self.own

    def on_step(self, index: int, timing: Timing) -> None:
        """Report the result of all workers to the optimizer's scaler."""
        scaler = self.scalers.get(index)
        self._nonfinite.scale = 1.0 if scaler is None else scaler.get_scale()
        if scaler is not None:
            _tell(scaler, self._optimizers[index], timing.refused is not None)
        if timing.judged:
            self._nonfinite.stepped(index, timing)

    def end(self) -> None:
        for optimizer in self._optimizers:
            _joined.pop(optimizer, None)


def refuse_hooks(models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse the script's gradient hooks, which would see gradients of a scaled loss."""
    modules = (module for model in models for module in model.modules())
    if any(map(_is_hooked, parameters_of(optimizers))) or any(
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
    """Tell the scaler whether the workers together refused the step."""
    if scaler.is_enabled() and scaler._scale is not None:
        state = scaler._per_optimizer_states[id(optimizer)]
        found = torch.full((), float(refused), device=scaler._scale.device)
        state["found_inf_per_device"] = {found.device: found}
        state["stage"] = OptState.STEPPED


class LossScale:
    """The factor by which ``--precision float16`` multiplies losses, so that small gradients do not
    vanish, in a run with one optimizer; without a ``scaler`` it is 1. Micikevicius et al., "Mixed
    precision training" (2018)."""

    def __init__(
        self,
        scaler: torch.amp.GradScaler | None,
        optimizers: Sequence[torch.optim.Optimizer],
        agreed: Set[int],
    ) -> None:
        self.scaler, self._optimizers, self._agreed = scaler, optimizers, agreed
        self.forget()

    def forget(self) -> None:
        """Forget the present gradients, which were stepped with or dropped."""
        self.scaled = self.unscaled = False
        """Whether a loss was scaled, and whether its gradients were unscaled to be read."""
        self._seen = self._overflowed = False
        """Whether the script saw gradients, and whether these were not finite then."""

    @property
    def value(self) -> float:
        """The scale of the current gradients, or of those to come."""
        if self.scaler is None or self.unscaled or self._agreed:
            return 1.0
        return self.scaler.get_scale()

    @property
    def is_missing(self) -> bool:
        """Whether there are gradients, none of which is of a scaled loss."""
        return self.scaler is not None and not self.scaled and bool(self._gradients())

    def scale(self, error: Tensor) -> Tensor:
        """Return the scaled loss, for the backward pass in place of ``error``."""
        if self.scaler is None:
            return error
        scale = self.scaler.get_scale()
        if not self.scaled:
            self._multiply(scale)  # the script has put gradients there
        self.scaled = True
        return error * scale

    def unscale(self) -> bool:
        """Unscale gradients, because the script reads them; return whether they have changed."""
        scale = self.value if self.scaled else 1.0
        if scale == 1.0:
            return False
        self._multiply(1.0 / scale)
        self.unscaled = True
        return True

    def look(self) -> None:
        """Check gradients that the script sees, as it may hide that a scaled loss overflowed: it
        may clip each value, or take no step at all."""
        if self.scaler is not None and not self._seen:
            self._seen, self._overflowed = True, not are_finite(self._gradients())

    def spoil(self) -> None:
        """Make sure that overflowed gradients are skipped, whatever the script has done."""
        if self._overflowed:
            self._multiply(math.nan)

    def back_off(self) -> None:
        """Lower the scale after gradients that overflowed and that the script dropped itself."""
        if self._overflowed and self.scaler is not None:
            smaller = self.scaler.get_scale() * self.scaler.get_backoff_factor()
            self.scaler.update(max(1.0, smaller))

    def _multiply(self, factor: float) -> None:
        if gradients := self._gradients():
            with torch.no_grad():
                torch._foreach_mul_(gradients, factor)

    def _gradients(self) -> list[Tensor]:
        return [g for p in parameters_of(self._optimizers) if (g := get_grad(p)) is not None]
