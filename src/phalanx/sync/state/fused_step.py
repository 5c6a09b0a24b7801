"""A step of ``SGD``, ``Adam`` or ``AdamW`` by torch's fused kernels, called directly.

``optimizer.step()`` gathers the same lists in Python, groups them and announces itself to profilers
before it calls the kernel: 0.1 to 0.2 ms, several times what the kernel takes, and of a small
compiled model a tenth of the step. The arithmetic is that of torch, and anything unusual is left to
``optimizer.step()``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as hooks

Slots = list[list[Tensor]]


class FusedStep:
    """Of an optimizer that is fused."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer: Any = optimizer
        self._known_step: Callable[..., Any] | None = None
        self._is_torch_s = False

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], found: Tensor) -> bool:
        """Unless ``found`` is not 0; returns ``False``, and does nothing, where it cannot.

        ``gradients`` have one type and are on one device.
        """
        group, *others = self._optimizer.param_groups
        parameters = group["params"]
        if others or len(parameters) != len(gradients) or not self._is_plain():
            return False
        sgd = type(self._optimizer) is torch.optim.SGD
        slots = self._slots(parameters, _sgd_slots(group) if sgd else _adam_slots(group))
        if slots is None:
            return False
        (_step_sgd if sgd else self._step_adam)(group, parameters, gradients, slots, found)
        # Schedulers warn when the optimizer they know has not stepped itself.
        self._optimizer._opt_called = True
        return True

    def _is_plain(self) -> bool:
        """Whether ``optimizer.step`` is torch's own, and calls nothing of a script."""
        optimizer = self._optimizer
        own, in_class = optimizer.__dict__.get("step"), type(optimizer).step
        if own is not None and getattr(own, "__wrapped__", None) is not in_class:
            return False  # not the wrapper of a scheduler
        if hooks._global_optimizer_pre_hooks or hooks._global_optimizer_post_hooks:
            return False
        if in_class is not self._known_step:
            self._known_step = in_class
            self._is_torch_s = inspect.unwrap(in_class).__module__.startswith("torch.optim.")
        return self._is_torch_s

    def _slots(self, parameters: list[Tensor], names: Sequence[str]) -> Slots | None:
        """What the optimizer keeps of each parameter; ``None`` if something is not there yet."""
        state = self._optimizer.state
        if not names:
            return []
        if len(state) != len(parameters) or not all(map(is_, state, parameters)):
            return None
        found = [[kept.get(name) for kept in state.values()] for name in names]
        if any(any(map(is_, each, repeat(None))) for each in found):
            return None
        return found

    def _step_adam(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: Sequence[Tensor],
        slots: Slots, found: Tensor,
    ) -> None:  # fmt: skip
        older = type(self._optimizer) is torch.optim.AdamW  # before torch 2.7 no group said so
        decoupled = group.get("decoupled_weight_decay", older)
        fused: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
        steps, first, second, *largest = slots
        torch._foreach_add_(steps, 1)
        fused(
            parameters, gradients, first, second, largest[0] if largest else [], steps,
            amsgrad=group["amsgrad"], lr=group["lr"], beta1=group["betas"][0],
            beta2=group["betas"][1], weight_decay=group["weight_decay"], eps=group["eps"],
            maximize=group["maximize"], grad_scale=None, found_inf=found,
        )  # fmt: skip
        torch._foreach_sub_(steps, [found] * len(steps))


def _sgd_slots(group: dict[str, Any]) -> Sequence[str]:
    return ("momentum_buffer",) if group["momentum"] else ()


def _adam_slots(group: dict[str, Any]) -> Sequence[str]:
    return ("step", "exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))


def _step_sgd(
    group: dict[str, Any], parameters: list[Tensor], gradients: Sequence[Tensor], slots: Slots,
    found: Tensor,
) -> None:  # fmt: skip
    torch._fused_sgd_(
        parameters, list(gradients), slots[0] if slots else [],
        weight_decay=group["weight_decay"], momentum=group["momentum"], lr=group["lr"],
        dampening=group["dampening"], nesterov=group["nesterov"], maximize=group["maximize"],
        is_first_step=False, grad_scale=None, found_inf=found,
    )  # fmt: skip
