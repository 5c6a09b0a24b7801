"""Buffers and untrained parameters of the models, by name, for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from phalanx.sync.state.optimizer_state import State, copies


def prefixed(models: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """With several models each has its number before its names, as in the saved weights."""
    for i, model in enumerate(models):
        yield (f"{i}." if len(models) > 1 else ""), model


def buffers_by_name(models: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for prefix, model in prefixed(models):
        persistent = model.state_dict(keep_vars=True)
        for name, buffer in model.named_buffers(remove_duplicate=False):
            if name in persistent:
                yield prefix + name, buffer


def named_buffers(models: Sequence[nn.Module], device: torch.device) -> State:
    """Copies of them on ``device``."""
    return copies({f"buffer.{n}": b.detach() for n, b in buffers_by_name(models)}, device)


@torch.no_grad()
def load_buffers(models: Sequence[nn.Module], state: State) -> None:
    for name, buffer in buffers_by_name(models):
        if f"buffer.{name}" in state:
            buffer.copy_(state[f"buffer.{name}"])


def names_of(models: Sequence[nn.Module]) -> dict[int, list[str]]:
    """The names of each parameter, by its id; several when it is tied."""
    found: dict[int, list[str]] = {}
    for prefix, model in prefixed(models):
        for name, parameter in model.named_parameters(remove_duplicate=False):
            found.setdefault(id(parameter), []).append(prefix + name)
    return found


def frozen(models: Sequence[nn.Module], trained: set[int]) -> list[tuple[str, Tensor]]:
    """Parameters that no optimizer trains."""
    return [
        (prefix + name, parameter)
        for prefix, model in prefixed(models)
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if id(parameter) not in trained
    ]
