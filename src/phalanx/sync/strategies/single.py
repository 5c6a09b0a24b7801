"""One worker: the user's own optimizer, and no communication at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phalanx.sync.arena.clock import Clock
from phalanx.sync.state.gradient_values import are_sound
from phalanx.sync.state.gradients import get_grad, set_grad
from phalanx.sync.state.optimizer_state import (
    State,
    copies,
    export_tensors,
    load_tensors,
    read_slot,
    read_steps,
    write_slots,
)
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.shard_optimizer import discover_slots, is_elementwise
from phalanx.sync.state.skip_dynamo_import import StepWithoutCompiler
from phalanx.sync.strategy import Timing

if TYPE_CHECKING:
    from phalanx.sync.state.device_skips import DeviceSkips


class Single:
    """The strategy of a run with one worker, whichever strategy was asked for."""

    def __init__(self, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
        self._optimizer, self._clock = optimizer, clock
        self._without_compiler = StepWithoutCompiler(optimizer)

    def exchange(self, scale: float, clip: float | None = None) -> Timing:
        """Step with gradients that are first multiplied by ``scale``."""
        ready, (parameters, gradients) = self._clock.now(), self._gradients()
        finite = are_sound(gradients)
        if scale != 1.0 and finite and gradients:
            torch._foreach_mul_(gradients, scale)
        if clip is not None and finite:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        if finite:
            with self._without_compiler:
                self._optimizer.step()
        _drop(parameters)
        return Timing(update=self._clock.now() - ready, refused=None if finite else (0,))

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        parameters = [p for g in self._optimizer.param_groups for p in g["params"]]
        return parameters, [g for g in map(get_grad, parameters) if g is not None]


class SingleOnGpu(Single):
    """Trains on a GPU that skips bad steps by itself; the host learns of that some steps later."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, clock: Clock, say: Callable[[str], None]
    ) -> None:
        super().__init__(optimizer, clock)
        self._say = say
        self._skips: DeviceSkips | None = None
        self._tried = self._over = self._ours = False

    def exchange(self, scale: float, clip: float | None = None) -> Timing:
        ready, (parameters, gradients) = self._clock.now(), self._gradients()
        if not self._tried and gradients:
            self._begin(gradients)
        if self._skips is None:
            return super().exchange(scale, clip)
        if gradients and not self._over and self._skips.serves(gradients):
            self._skips.step(gradients, scale, clip)
            _drop(parameters)
        else:
            self._stop_skipping(bool(gradients))
            self._skips.add(super().exchange(scale, clip).refused is not None)
        skipped = self._skips.verdict()
        refused = (0,) if skipped else None
        return Timing(update=self._clock.now() - ready, refused=refused, judged=skipped is not None)

    def _begin(self, gradients: list[Tensor]) -> None:
        self._tried, device = True, gradients[0].device
        if device.type != "cuda" or any(g.device != device for g in gradients):
            return
        from phalanx.sync.state.device_skips import DeviceSkips, make_fused

        fused = make_fused(self._optimizer, gradients)
        if fused is False:
            return
        self._skips = DeviceSkips(self._optimizer, device)
        self._ours = fused is True
        if fused:
            name = type(self._optimizer).__name__
            self._say(f"{name} runs fused: it rounds differently (as it was: foreach=True)")

    def _stop_skipping(self, for_good: bool) -> None:
        """If ``for_good``, let the host judge further steps: the optimizer has changed."""
        if for_good and not self._over:
            self._over = True
            if self._ours:
                from phalanx.sync.state.device_skips import take_back

                take_back(self._optimizer)

    def settle(self) -> list[Timing]:
        """Judge the steps that were not judged yet, in their order."""
        skipped = self._skips.settle() if self._skips is not None else []
        return [Timing(refused=(0,) if each else None) for each in skipped]


def _drop(parameters: list[Tensor]) -> None:
    """Drop gradients as ``zero_grad`` does, without its wrappers."""
    for parameter in parameters:
        set_grad(parameter, None)


def export_alone(replica: Replica, device: torch.device) -> State:
    """Return parameters and state as :meth:`SharedState.export_whole` does, on ``device``."""
    flats = [torch.empty(n.size, dtype=n.dtype, device=device) for n in replica.layouts]
    replica.copy_out(flats)
    state = {f"parameters.{i}": flat for i, flat in enumerate(flats)}
    if not is_elementwise(replica.optimizer):
        return state | copies(export_tensors(replica), device)
    names = discover_slots(replica.optimizer)
    for name in names.flat:
        state |= {f"{name}.{i}": flat for i, flat in enumerate(read_slot(replica, name, device))}
    steps = {f"steps.{i}": found for i, found in enumerate(read_steps(replica, names.flat))}
    return state | copies(steps, device)


@torch.no_grad()
def import_alone(replica: Replica, state: State) -> None:
    for i, (layout, parameters) in enumerate(zip(replica.layouts, replica.parameters, strict=True)):
        for place, parameter in zip(layout.places, parameters, strict=True):
            parameter.copy_(place.view(state[f"parameters.{i}"]))
    if not is_elementwise(replica.optimizer):
        load_tensors(replica, state)
        return
    names, layouts = discover_slots(replica.optimizer), range(len(replica.layouts))
    slots = [{n: state[f"{n}.{i}"] for n in names.flat if f"{n}.{i}" in state} for i in layouts]
    write_slots(replica, slots, [state[f"steps.{i}"].tolist() for i in layouts], names.scalar)
