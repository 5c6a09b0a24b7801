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

from phalanx.sync.state.gradients import get_grad

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
    if type(optimizer) not in FUSED or not all(_fits(g) for g in groups) or _has_hooks(optimizer):
        return False
    if not are_plain(gradients, gradients[0].device):
        return False
    chosen = not all(g["fused"] is None and g["foreach"] is None for g in groups)
    if chosen and not all(g["fused"] for g in groups):
        return False
    if not chosen and torch.are_deterministic_algorithms_enabled():
        return False
    _set_fused(optimizer, True)
    _move_counts(optimizer, None)
    return None if chosen else True


def take_back(optimizer: torch.optim.Optimizer) -> None:
    """It runs again as torch chooses."""
    _set_fused(optimizer, None)
    _move_counts(optimizer, torch.device("cpu"))


def are_plain(gradients: Sequence[Tensor], device: torch.device) -> bool:
    return all(
        g.layout == torch.strided and g.is_floating_point() and g.device == device
        for g in gradients
    )


def _fits(group: dict[str, Any]) -> bool:
    # With dampening a first step differs from one upon a momentum of zero.
    plain = not group["differentiable"] and not isinstance(group["lr"], Tensor)
    return plain and not group.get("capturable") and not group.get("dampening")


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Of the script, which would be called for a step that is skipped; one before it is ours."""
    known: Any = optimizer
    return bool(known._optimizer_step_post_hooks) or len(known._optimizer_step_pre_hooks) > 1


def _set_fused(optimizer: torch.optim.Optimizer, value: bool | None) -> None:
    for group in (*optimizer.param_groups, optimizer.defaults):
        group["fused"] = value


def _move_counts(optimizer: torch.optim.Optimizer, device: torch.device | None) -> None:
    """A fused step counts where the parameters are, any other on the host."""
    for parameter, state in optimizer.state.items():
        if isinstance(step := state.get("step"), Tensor):
            state["step"] = step.to(device or parameter.device)


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
        self._scaled_by, self._one = 1.0, torch.ones((), device=flags.device)
        self._waiting: deque[Callable[[], bool]] = deque()
        self._made_for = self._features()

    def _features(self) -> list[tuple[Any, ...]]:
        return [
            (len(g["params"]), g["fused"], bool(g.get("momentum")), g.get("dampening"))
            for g in self._optimizer.param_groups
        ]

    def serves(self, gradients: Sequence[Tensor]) -> bool:
        """Whether the optimizer is what it was, and its gradients are."""
        same = self._made_for == self._features() and not _has_hooks(self._optimizer)
        return same and are_plain(gradients, self._flags.device)

    def _complete(self) -> None:
        """Where there is no momentum yet it is zero: a step that is skipped would leave a first one
        undefined."""
        state = self._optimizer.state
        for group in self._optimizer.param_groups:
            for parameter in group["params"] if group.get("momentum") else ():
                known = parameter in state and state[parameter].get("momentum_buffer") is not None
                if not known and get_grad(parameter) is not None:
                    state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def step(self, gradients: Sequence[Tensor], scale: float, clip: float | None) -> None:
        """Multiply by ``scale``, clip, and step, unless a gradient is not finite."""
        self._complete()
        if scale != self._scaled_by:
            self._scale.fill_(scale)
            self._scaled_by = scale
        self._found.zero_()
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for gradient in gradients:
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for dtype, members in by_dtype.items():
            exact = dtype == torch.float64 and scale != 1.0  # the factor there is a float32
            factor = self._one if exact else self._scale
            torch._amp_foreach_non_finite_check_and_unscale_(members, self._found, factor)
            if exact:
                torch._foreach_mul_(members, scale)
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
