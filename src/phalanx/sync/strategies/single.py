"""One worker: the user's own optimizer, and no communication at all."""

from __future__ import annotations

import torch

from phalanx.sync.arena.clock import Clock
from phalanx.sync.state.gradient_values import are_finite
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
from phalanx.sync.strategies.strategy import Timing


class Single:
    """What every strategy becomes when there is only one worker."""

    def __init__(self, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
        self._optimizer, self._clock = optimizer, clock

    def exchange(self, scale: float, clip: float | None = None) -> Timing:
        """Gradients are multiplied by ``scale`` first."""
        ready = self._clock.now()
        parameters = [p for g in self._optimizer.param_groups for p in g["params"]]
        gradients = [g for p in parameters if (g := get_grad(p)) is not None]
        finite = are_finite(gradients)
        if scale != 1.0 and finite:
            torch._foreach_mul_(gradients, scale)
        if clip is not None and finite:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        if finite:
            self._optimizer.step()
        for parameter in parameters:  # zero_grad, without its wrappers
            set_grad(parameter, None)
        return Timing(update=self._clock.now() - ready, refused=None if finite else (0,))


def export_alone(replica: Replica, device: torch.device) -> State:
    """What :meth:`SharedState.export_whole` would give, in memory of ``device``."""
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
