"""A script's ``clip_grad_norm_``: the norm is found where gradients are summed.

Reading the gradients instead would bring the whole sum back to every worker, and on a GPU to its
memory. Each worker keeps the slices that it has summed for the step, and multiplies its own
gradients by the same factor: the script may still read or change gradients; the step then exchanges
them.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from phalanx.sync.state.gradient_values import clip_factor
from phalanx.sync.state.gradients import get_grad
from phalanx.train.engine.engine import Engine
from phalanx.train.engine.script_optimizers import Inside
from phalanx.train.step.gradient_weight import GradientWeight


class Clipping:
    """Clips gradients of one training's optimizers between backward passes and steps."""

    def __init__(
        self,
        optimizers: list[torch.optim.Optimizer],
        engine: Engine,
        weight: GradientWeight,
        ours: Inside,
        note: Callable[[Tensor], None],
    ) -> None:
        """``note`` is called with the norms that torch finds."""
        self.note = note
        self._optimizers, self._engine, self._weight = optimizers, engine, weight
        self._ours = ours
        self.clipped: dict[int, list[tuple[Tensor, int]]] = {}
        """The gradients of each optimizer whose sums are clipped, with their versions."""

    @torch.no_grad()
    def clip(self, parameters: list[Tensor], limit: float) -> Tensor | None:
        """Clip one optimizer's gradients; return their norm, or ``None`` to leave it to torch."""
        if self._ours or self._engine.parties == 1 or self._weight.loss_scale.scaler is not None:
            return None
        index = self._index(parameters)
        if index is None or index in self._weight.agreed or self._engine.optimizers.outgrown():
            return None
        with self._ours:
            scale, weight = self._weight.of_step(index)
            norm = self._engine.exchange.clip_gradients(index, scale, weight, limit)
        if norm is None:
            return None
        own = self._gradients(index)
        if own and math.isfinite(norm) and (factor := clip_factor(norm**2, limit)) < 1.0:
            torch._foreach_mul_(own, factor)
        self.clipped[index] = [(gradient, gradient._version) for gradient in own]
        like = own[0] if own else parameters[0]
        return torch.tensor(norm, dtype=like.dtype, device=like.device)

    def stands(self, index: int) -> bool:
        """Whether optimizer ``index`` can step with clipped sums: its gradients are unchanged."""
        if index not in self.clipped:
            return False
        known, now = self.clipped.pop(index), self._gradients(index)
        return len(known) == len(now) and all(
            gradient is own and own._version == version
            for (gradient, version), own in zip(known, now, strict=True)
        )

    def _index(self, parameters: list[Tensor]) -> int | None:
        """Return the optimizer whose trained parameters are exactly these."""
        given = {id(p) for p in parameters if p.requires_grad}
        for index in range(len(self._optimizers)):
            if given == {id(p) for p in self._parameters(index) if p.requires_grad}:
                return index
        return None

    def _gradients(self, index: int) -> list[Tensor]:
        return [g for p in self._parameters(index) if (g := get_grad(p)) is not None]

    def _parameters(self, index: int) -> Iterable[Tensor]:
        return (p for group in self._optimizers[index].param_groups for p in group["params"])


class _Current(threading.local):
    clipping: Clipping | None = None


_current = _Current()


def watch_clipping(clipping: Clipping | None) -> None:
    """Let ``clip_grad_norm_`` of this thread clip by ``clipping`` from now on, where that can."""
    _current.clipping = clipping
    plain: Any = torch.nn.utils.clip_grad_norm_
    if hasattr(plain, "_phalanx_watches"):
        return

    @functools.wraps(plain)
    def clip(
        parameters: Any, max_norm: float, norm_type: float = 2.0,
        error_if_nonfinite: bool = False, *args: Any, **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        found = None
        if _current.clipping is not None and not error_if_nonfinite and float(norm_type) == 2.0:
            limit = float(max_norm)
            found = _current.clipping.clip(given, limit) if limit > 0.0 else None
        if found is None:
            found = plain(given, max_norm, norm_type, error_if_nonfinite, *args, **kwargs)
            if _current.clipping is not None and float(norm_type) == 2.0:
                _current.clipping.note(found.detach())
        return found

    setattr(clip, "_phalanx_watches", True)  # noqa: B010
    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip
