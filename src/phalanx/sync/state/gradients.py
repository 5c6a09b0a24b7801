"""Gradients as a script sees them: reading ``.grad`` gives what one process would have.

Several workers that step together each have the gradient of their own samples until they exchange
it. A script that reads ``.grad`` in between (to clip it, to log its norm) means the gradient of
the whole batch, so reading is what makes the workers agree on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_grad: Any = torch.Tensor.grad
get_grad: Callable[[Tensor], Tensor | None] = _grad.__get__
"""This worker's own ``.grad``, also where reads are watched."""
set_grad: Callable[[Tensor, Tensor | None], None] = _grad.__set__

OnRead = Callable[[Tensor], None]
OnWrite = Callable[[Tensor], None]


@dataclass
class Scale:
    """What gradients are multiplied by where they are copied out to be exchanged."""

    value: float = 1.0


def watch_reads(
    parameters: Iterable[Tensor], on_read: OnRead, on_write: OnWrite | None = None
) -> None:
    """Call ``on_read`` before Python code outside a backward pass reads one of these gradients, and
    ``on_write`` before it puts another one in its place."""
    watched = _watched_class(on_read, on_write)
    for parameter in parameters:
        if type(parameter) is nn.Parameter:
            parameter.__class__ = watched


def stop_watching(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        if type(parameter).__dict__.get("_phalanx_watched"):
            parameter.__class__ = nn.Parameter


def _watched_class(on_read: OnRead, on_write: OnWrite | None) -> type[nn.Parameter]:
    def read(self: Tensor) -> Tensor | None:
        gradient = get_grad(self)
        # Zeroing a gradient needs no agreement on it, and inside a backward pass it is unfinished.
        if (
            gradient is None
            or sys._getframe(1).f_code.co_name == "zero_grad"
            or torch._C._current_graph_task_id() != -1
        ):
            return gradient
        on_read(self)
        return get_grad(self)

    def write(self: Tensor, gradient: Tensor | None) -> None:
        inside = torch._C._current_graph_task_id() != -1
        if on_write is not None and gradient is not None and not inside:
            on_write(self)
        set_grad(self, gradient)

    def copied(self: nn.Parameter, memo: dict[int, Any]) -> nn.Parameter:
        """An ordinary parameter: a copy of the model takes no part in the run."""
        if id(self) not in memo:
            data = self.data.clone(memory_format=torch.preserve_format)
            memo[id(self)] = nn.Parameter(data, self.requires_grad)
        found: nn.Parameter = memo[id(self)]
        return found

    body = {
        "grad": property(read, write, lambda self: set_grad(self, None)),
        "__deepcopy__": copied,
        "_phalanx_watched": True,
    }
    return type("Parameter", (nn.Parameter,), body)
