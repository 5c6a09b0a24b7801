"""Lets a GPU skip steps by itself when their gradients are not finite.

If the host read each flag before the step, it would wait for the backward pass, and then the GPU
would wait for the host: a fifth of a short step. Instead, fused optimizers look at a flag in the
GPU's memory (made for ``torch.amp.GradScaler``), and the host reads several steps' flags later.

All of this runs in every step, often on a host that can hardly keep its GPU busy. So there are as
few Python loops over all parameters as possible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as hooks

from phalanx.sync.state.fused_step import step_directly
from phalanx.sync.state.gradients import get_grad
from phalanx.sync.state.skip_dynamo_import import StepWithoutCompiler

BLOCK = 8
"""Steps whose flags are copied to the host together."""
LAG = 4
"""Steps after which the host reads flags; it is seldom further ahead of the GPU."""
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
Groups = Sequence[dict[str, Any]]


def make_fused(optimizer: torch.optim.Optimizer, gradients: Sequence[Tensor]) -> bool | None:
    """Make an optimizer fused; return ``True`` if it is now, ``None`` if it was, ``False`` if not.

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
    """Let the optimizer run again as torch chooses."""
    _set_fused(optimizer, None)
    _move_counts(optimizer, torch.device("cpu"))


def are_plain(gradients: Sequence[Tensor], device: torch.device) -> bool:
    number = -1 if device.index is None else device.index
    return set(map(Tensor.get_device, gradients)) == {number} and all(
        layout == torch.strided and dtype.is_floating_point
        for layout, dtype in set(map(attrgetter("layout", "dtype"), gradients))
    )


def _fits(group: dict[str, Any]) -> bool:
    # With dampening, the first step differs from a step upon zero momentum.
    plain = not group["differentiable"] and not isinstance(group["lr"], Tensor)
    return plain and not group.get("capturable") and not group.get("dampening")


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the script has optimizer hooks: a skipped step would call them too, or not at all."""
    known: Any = optimizer
    of_all = hooks._global_optimizer_pre_hooks or hooks._global_optimizer_post_hooks
    before = known._optimizer_step_pre_hooks.values()
    return bool(of_all or known._optimizer_step_post_hooks) or not all(map(_is_ours, before))


def _is_ours(hook: Callable[..., Any]) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("phalanx.")


def _set_fused(optimizer: torch.optim.Optimizer, value: bool | None) -> None:
    for group in (*optimizer.param_groups, optimizer.defaults):
        group["fused"] = value


def _move_counts(optimizer: torch.optim.Optimizer, device: torch.device | None) -> None:
    """Move step counts to where the step needs them: beside the parameters, if it is fused."""
    for parameter, state in optimizer.state.items():
        if isinstance(step := state.get("step"), Tensor):
            state["step"] = step.to(device or parameter.device)


class Flags:
    """Flags of ``BLOCK`` steps in memory of the device: not 0 if a step was skipped."""

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._on_device = torch.zeros(BLOCK, device=device)
        self._on_host = torch.zeros(BLOCK, pin_memory=cuda)
        self._arrived = torch.cuda.Event() if cuda else None
        self.of_step = self._on_device.unbind()

    def send(self) -> None:
        self._on_host.copy_(self._on_device, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(self._on_device.device))

    def read(self) -> list[bool]:
        """Return the flags that were sent, whose memory may be used again from then on."""
        if self._arrived is not None:
            self._arrived.synchronize()
        self._on_device.zero_()
        return [flag != 0.0 for flag in self._on_host.tolist()]


class DeviceSkips:
    """Follows which steps one fused optimizer has skipped."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._optimizer, self._device = optimizer, device
        self._scale = torch.ones((), device=device)
        self._scaled_by, self._one = 1.0, torch.ones((), device=device)
        self._flags, self._used = Flags(device), 0
        """Flags of the current steps, and how many of them are used."""
        self._free: list[Flags] = []
        self._steps = 0
        self._sent: deque[tuple[int, Callable[[], list[bool]]]] = deque()
        """Flags that were sent: the step from which on to read them, and what reads them."""
        self._known: deque[bool] = deque()
        self._made_for = self._features()

    def _features(self) -> list[tuple[Any, ...]]:
        return [
            (len(g["params"]), g["fused"], bool(g.get("momentum")), g.get("dampening"))
            for g in self._optimizer.param_groups
        ]

    def serves(self, gradients: Sequence[Tensor]) -> bool:
        """Whether the optimizer and its gradients are still of the kind that this can handle."""
        same = self._made_for == self._features() and not _has_hooks(self._optimizer)
        return same and are_plain(gradients, self._device)

    def _complete(self) -> None:
        """Fill missing momentum with zeros: a skipped step would leave a first one undefined."""
        state = self._optimizer.state
        for group in self._optimizer.param_groups:
            for parameter in group["params"] if group.get("momentum") else ():
                known = parameter in state and state[parameter].get("momentum_buffer") is not None
                if not known and get_grad(parameter) is not None:
                    state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def step(self, gradients: Sequence[Tensor], scale: float, clip: float | None) -> None:
        """Multiply by ``scale``, clip, and step, unless a gradient is not finite."""
        if scale != self._scaled_by:
            self._scale.fill_(scale)
            self._scaled_by = scale
        found = self._flags.of_step[self._used]
        kinds = _by_dtype(gradients)
        for members in kinds:
            # The factor there is a float32.
            exact = scale != 1.0 and members[0].dtype == torch.float64
            factor = self._one if exact else self._scale
            torch._amp_foreach_non_finite_check_and_unscale_(members, found, factor)
            if exact:
                torch._foreach_mul_(members, scale)
        if clip is not None:
            members = [p for g in self._optimizer.param_groups for p in g["params"]]
            torch.nn.utils.clip_grad_norm_(members, clip)
        if len(kinds) > 1 or not step_directly(self._optimizer, gradients, found):
            self._step_by_torch(found)
        self._used += 1
        self._steps += 1
        if self._used == BLOCK:
            self._send()

    def _step_by_torch(self, found: Tensor) -> None:
        self._complete()
        optimizer: Any = self._optimizer
        optimizer.found_inf = found
        try:
            with StepWithoutCompiler(optimizer):
                optimizer.step()
        finally:
            del optimizer.found_inf

    def _send(self) -> None:
        """Send the flags of the steps so far; the next steps get others."""
        flags, used = self._flags, self._used
        if not used:
            return
        flags.send()

        def read() -> list[bool]:
            found = flags.read()[:used]
            self._free.append(flags)
            return found

        self._sent.append((self._steps + LAG, read))
        self._flags, self._used = self._free.pop() if self._free else Flags(self._device), 0

    def add(self, skipped: bool) -> None:
        """Record a step that the host itself judged."""
        self._send()
        self._steps += 1
        self._sent.append((self._steps, lambda: [skipped]))

    def verdict(self) -> bool | None:
        """Return whether the next step was skipped; ``None`` if that is not known yet."""
        if not self._known and self._sent and self._steps >= self._sent[0][0]:
            self._known.extend(self._sent.popleft()[1]())
        return self._known.popleft() if self._known else None

    def settle(self) -> list[bool]:
        """Wait for and return the verdicts on all remaining steps."""
        self._send()
        found = [*self._known, *(skipped for _, read in self._sent for skipped in read())]
        self._known.clear()
        self._sent.clear()
        return found


def _by_dtype(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    found = set(map(attrgetter("dtype"), gradients))
    if len(found) == 1:
        return [list(gradients)]
    return [[g for g in gradients if g.dtype == dtype] for dtype in found]
