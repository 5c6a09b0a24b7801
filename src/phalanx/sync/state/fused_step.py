"""A step of ``SGD``, ``Adam`` or ``AdamW`` by torch's fused kernels, called directly.

``optimizer.step()`` gathers the same lists in Python, groups them and announces itself to profilers
before it calls the kernel: 0.1 to 0.2 ms, several times what the kernel takes, and of a small
compiled model a tenth of the step. The arithmetic is that of torch, and anything unusual is left to
``optimizer.step()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any

import torch
from torch import Tensor

Group = dict[str, Any]


@torch.no_grad()
def step_directly(
    optimizer: torch.optim.Optimizer, gradients: Sequence[Tensor], found: Tensor
) -> bool:
    """Step a fused ``optimizer``, unless ``found`` is not 0; return ``False``, and do nothing, if
    that is not possible. ``gradients`` have one type and are on one device."""
    group, *others = optimizer.param_groups
    if others or len(group["params"]) != len(gradients) or not _is_plain(optimizer):
        return False
    step = _step_sgd if type(optimizer) is torch.optim.SGD else _step_adam
    if not step(optimizer, group, gradients, found):
        return False
    # Schedulers warn if the optimizer's own ``step`` was not called.
    setattr(optimizer, "_opt_called", True)  # noqa: B010
    return True


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether ``optimizer.step`` is torch's own, under wrappers of torch and Phalanx at most."""
    step: Any = optimizer.step
    while step is not None and _is_known(step):
        step = getattr(step, "__wrapped__", None)
    return step is None


def _is_known(function: Any) -> bool:
    """Whether a function is a wrapper such as a scheduler's. Its globals show that:
    ``functools.wraps`` copies ``__module__``."""
    name = str(getattr(function, "__globals__", {}).get("__name__"))
    return name.startswith(("torch.optim.", "phalanx."))


def _step_sgd(
    optimizer: torch.optim.Optimizer, group: Group, gradients: Sequence[Tensor], found: Tensor
) -> bool:
    slots = _slots(optimizer, group, ["momentum_buffer"]) if group["momentum"] else [[]]
    if slots is None:
        return False
    torch._fused_sgd_(
        group["params"], list(gradients), slots[0],
        weight_decay=group["weight_decay"], momentum=group["momentum"], lr=group["lr"],
        dampening=group["dampening"], nesterov=group["nesterov"], maximize=group["maximize"],
        is_first_step=False, grad_scale=None, found_inf=found,
    )  # fmt: skip
    return True


def _step_adam(
    optimizer: torch.optim.Optimizer, group: Group, gradients: Sequence[Tensor], found: Tensor
) -> bool:
    names = ["step", "exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * group["amsgrad"]]
    slots = _slots(optimizer, group, names)
    if slots is None:
        return False
    older = type(optimizer) is torch.optim.AdamW  # before torch 2.7 its groups did not say so
    decoupled = group.get("decoupled_weight_decay", older)
    fused: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
    steps, first, second, *largest = slots
    torch._foreach_add_(steps, 1)
    fused(
        group["params"], gradients, first, second, largest[0] if largest else [], steps,
        amsgrad=group["amsgrad"], lr=group["lr"], beta1=group["betas"][0],
        beta2=group["betas"][1], weight_decay=group["weight_decay"], eps=group["eps"],
        maximize=group["maximize"], grad_scale=None, found_inf=found,
    )  # fmt: skip
    torch._foreach_sub_(steps, [found] * len(steps))
    return True


def _slots(
    optimizer: torch.optim.Optimizer, group: Group, names: Sequence[str]
) -> list[list[Tensor]] | None:
    """Return the optimizer's state of each parameter; ``None`` if some of it is not there yet."""
    state, parameters = optimizer.state, group["params"]
    if len(state) != len(parameters) or not all(map(is_, state, parameters)):
        return None
    found = [[kept.get(name) for kept in state.values()] for name in names]
    if any(any(map(is_, each, repeat(None))) for each in found):
        return None
    return found
