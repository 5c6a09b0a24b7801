"""Reads and writes the state of the user's own optimizer, as named tensors and as flat slots."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from phalanx.sync.state.replica import Replica

State = dict[str, Tensor]


def _named(replica: Replica) -> Iterator[tuple[str, Tensor]]:
    for i, parameters in enumerate(replica.parameters):
        for n, parameter in enumerate(parameters):
            yield f"optimizer.{i}.{n}.", parameter


def export_tensors(replica: Replica) -> State:
    """Return every tensor and number that the optimizer keeps for a parameter."""
    found: State = {}
    for prefix, parameter in _named(replica):
        for name, value in replica.optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found[prefix + name] = value.detach()
            elif isinstance(value, int | float):
                found[prefix + name] = torch.tensor(float(value), dtype=torch.float64)
    return found


def copies(tensors: State, device: torch.device) -> State:
    """Copy tensors into memory of ``device``; those on the host are copied there."""
    away = torch.device("cpu") if device.type != "cuda" else device
    return {
        name: value.to(away, copy=True) if value.device.type != "cpu" else value.clone()
        for name, value in tensors.items()
    }


def load_tensors(replica: Replica, state: State) -> None:
    """Let the optimizer continue from what :func:`export_tensors` returned."""
    counted = _counted_on_device(replica)
    for prefix, parameter in _named(replica):
        mine = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        if mine:
            on_device = parameter in counted
            replica.optimizer.state[parameter] = {
                name: _placed(value, parameter, on_device) for name, value in mine.items()
            }


def _placed(value: Tensor, parameter: Tensor, on_device: bool) -> Tensor | float:
    if value.dtype == torch.float64 and value.ndim == 0:
        return float(value)
    return value.clone().to(parameter.device) if value.ndim or on_device else value.clone()


def _counted_on_device(replica: Replica) -> set[Tensor]:
    """Return the parameters whose single numbers (``step``) are on their device."""
    groups = replica.optimizer.param_groups
    return {p for g in groups if g.get("capturable") or g.get("fused") for p in g["params"]}


def read_slot(replica: Replica, name: str, device: torch.device | None = None) -> list[Tensor]:
    """Return one slot of every parameter, laid out like them; zero where there is none."""
    flats = [torch.zeros(n.size, dtype=n.dtype, device=device) for n in replica.layouts]
    for layout, parameters, flat in zip(replica.layouts, replica.parameters, flats, strict=True):
        for place, parameter in zip(layout.places, parameters, strict=True):
            value = replica.optimizer.state.get(parameter, {}).get(name)
            if isinstance(value, Tensor):
                place.view(flat).copy_(value)
    return flats


def read_steps(replica: Replica, slots: tuple[str, ...]) -> list[Tensor]:
    """Return how often each parameter was updated, or 0 and 1 if the optimizer does not count.

    The result is on the GPU if the counts are: reading each one would wait for it.
    """
    return [
        _together([_steps(replica, p, slots) for p in parameters])
        for parameters in replica.parameters
    ]


def _steps(replica: Replica, parameter: Tensor, slots: tuple[str, ...]) -> float | Tensor:
    state = replica.optimizer.state.get(parameter, {})
    if not any(isinstance(state.get(name), Tensor) for name in slots):
        return 0.0
    steps: float | Tensor = state.get("step", 1)
    return steps if isinstance(steps, Tensor) and steps.is_cuda else float(steps)


def _together(numbers: list[float | Tensor]) -> Tensor:
    device = next((n.device for n in numbers if isinstance(n, Tensor)), None)
    if device is None:
        return torch.tensor(numbers, dtype=torch.float64)
    return torch.stack(
        [
            n.double() if isinstance(n, Tensor)
            else torch.full((), n, dtype=torch.float64, device=device)
            for n in numbers
        ]
    )  # fmt: skip


def write_slots(
    replica: Replica,
    slots: list[dict[str, Tensor]],
    steps: list[list[float]],
    scalars: tuple[str, ...],
) -> None:
    """Give the optimizer flat state in ordinary tensors, as if it had done the steps."""
    counted = _counted_on_device(replica)
    for i, layout in enumerate(replica.layouts):
        for n, place in enumerate(layout.places):
            if not steps[i][n]:
                continue
            parameter = replica.parameters[i][n]
            state: State = {
                name: place.view(slot).clone().to(parameter.device)
                for name, slot in slots[i].items()
            }
            where = parameter.device if parameter in counted else None
            state |= {name: torch.tensor(steps[i][n], device=where) for name in scalars}
            if state:
                replica.optimizer.state[parameter] = state
