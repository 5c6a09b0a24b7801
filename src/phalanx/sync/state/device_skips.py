"""Steps that a GPU skips by itself when their gradients are not finite.

If the host asked first, it would wait for the backward pass in every step, and the GPU for the host
after it: a fifth of a short step. Fused optimizers look at a flag in the GPU's own memory instead
(it was made for ``torch.amp.GradScaler``), and the host reads that flag some steps later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

LAG = 4
"""Steps after which the host hears of one: it is seldom further ahead of the GPU."""
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
Groups = Sequence[dict[str, Any]]


def make_fused(optimizer: torch.optim.Optimizer, gradients: Sequence[Tensor]) -> bool | None:
    """``False``: it is not fused, and cannot be; ``None``: it was, ``True``: it is from now on.

    One whose implementation the script has chosen stays as it is, and so does one of a script that
    asks for the same bits every time.
    """
    groups: Groups = optimizer.param_groups
    if type(optimizer) not in FUSED or not all(_fits(g) for g in groups):
        return False
    if any(g.layout != torch.strided or not g.is_floating_point() for g in gradients):
        return False
    chosen = not all(g["fused"] is None and g["foreach"] is None for g in groups)
    if chosen and not all(g["fused"] for g in groups):
        return False
    if not chosen and torch.are_deterministic_algorithms_enabled():
        return False
    for group in groups:
        group["fused"] = True
        _complete(optimizer, group)
    optimizer.defaults["fused"] = True
    return None if chosen else True


def _fits(group: dict[str, Any]) -> bool:
    # With dampening a first step differs from one upon a momentum of zero.
    plain = not group["differentiable"] and not isinstance(group["lr"], Tensor)
    return plain and not group.get("capturable") and not group.get("dampening")


def _complete(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """The state as a fused step wants it: a first momentum would be left undefined by a step that
    is skipped, and counts of steps have to be where the parameters are."""
    for parameter in group["params"]:
        state = optimizer.state[parameter] if group.get("momentum") else {}
        if group.get("momentum") and state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        known = optimizer.state.get(parameter, {})
        if isinstance(step := known.get("step"), Tensor):
            known["step"] = step.to(parameter.device)


class CudaFlags:
    """Flags on their way to the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def send(self, flag: Tensor) -> Callable[[], bool]:
        """What waits for the flag's value as it is now."""
        if self._free:
            target, there = self._free.popleft()
        else:
            target, there = torch.zeros((), pin_memory=True), torch.cuda.Event()
        target.copy_(flag, non_blocking=True)
        there.record(torch.cuda.current_stream(self.device))

        def value() -> bool:
            there.synchronize()
            self._free.append((target, there))
            return bool(target)

        return value


class DeviceSkips:
    """Of one fused optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, flags: CudaFlags) -> None:
        self._optimizer, self._flags = optimizer, flags
        self._found = torch.zeros((), device=flags.device)
        self._scale = torch.ones((), device=flags.device)
        self._scaled_by = 1.0
        self._waiting: deque[Callable[[], bool]] = deque()
        self._made_for = self._features()

    def _features(self) -> list[tuple[Any, ...]]:
        return [
            (len(g["params"]), g["fused"], g.get("momentum"), g.get("dampening"))
            for g in self._optimizer.param_groups
        ]

    @property
    def serves(self) -> bool:
        """Whether the optimizer is what it was."""
        return self._made_for == self._features()

    def step(self, gradients: Sequence[Tensor], scale: float, clip: float | None) -> None:
        """Multiply by ``scale``, clip, and step, unless a gradient is not finite."""
        if scale != self._scaled_by:
            self._scale.fill_(scale)
            self._scaled_by = scale
        self._found.zero_()
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for gradient in gradients:
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for members in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(members, self._found, self._scale)
        optimizer: Any = self._optimizer
        if clip is not None:
            members = [p for g in optimizer.param_groups for p in g["params"]]
            torch.nn.utils.clip_grad_norm_(members, clip)
        optimizer.found_inf = self._found
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf
        self._waiting.append(self._flags.send(self._found))

    def add(self, skipped: bool) -> None:
        """A step that was judged by the host itself."""
        self._waiting.append(lambda: skipped)

    def verdict(self) -> bool | None:
        """Whether the step ``LAG`` before the last one was skipped; ``None`` if there was none."""
        return self._waiting.popleft()() if len(self._waiting) > LAG else None

    def settle(self) -> list[bool]:
        """Of all steps of which the host has not heard."""
        found = [waiting() for waiting in self._waiting]
        self._waiting.clear()
        return found
