"""Watches reads of ``.grad``, so that a script sees the gradient that one process would have.

Several workers that step together each have the gradient of their own samples until they exchange
it. A script that reads ``.grad`` in between (to clip it, to log its norm) expects the gradient of
the whole batch, so a read makes the workers agree on it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_grad: Any = torch.Tensor.grad
get_grad: Callable[[Tensor], Tensor | None] = _grad.__get__
"""Returns this worker's own ``.grad``, without a watched read."""
set_grad: Callable[[Tensor, Tensor | None], None] = _grad.__set__

OnRead = Callable[[Tensor], None]
OnWrite = Callable[[Tensor], None]


@dataclass
class Scale:
    """The factor by which gradients are multiplied when they are copied out to be exchanged."""

    value: float = 1.0


def watch_reads(
    parameters: Iterable[Tensor], on_read: OnRead, on_write: OnWrite | None = None
) -> None:
    """Call ``on_read`` before Python code outside a backward pass reads one of these gradients, and
    ``on_write`` before it puts another one in its place."""
    made: dict[type[Tensor], type[Tensor]] = {}
    for parameter in parameters:
        kind = type(parameter)
        if _can_be_watched(kind):
            if kind not in made:
                made[kind] = _watched_class(kind, on_read, on_write)
            parameter.__class__ = made[kind]


def stop_watching(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        if type(parameter).__dict__.get("_phalanx_watched"):
            parameter.__class__ = type(parameter).__base__  # type: ignore[assignment]


def _can_be_watched(kind: type[Tensor]) -> bool:
    """Whether reads of the ``grad`` of tensors of this class can be watched.

    That also holds for what a script has derived from a parameter, or trains without making it one;
    not for tensors that stand for something else, which are known by their class.
    """
    plain = kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__
    known = kind is torch.Tensor or issubclass(kind, nn.Parameter)
    return known and plain and "_phalanx_watched" not in kind.__dict__


def _watched_class(kind: type[Tensor], on_read: OnRead, on_write: OnWrite | None) -> type[Tensor]:
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

    def copied(self: Tensor, memo: dict[int, Any]) -> Tensor:
        """Return an ordinary parameter for a copied model, which takes no part in the run."""
        if kind is not nn.Parameter:
            with _as(self, kind):
                return copy.deepcopy(self, memo)
        if id(self) not in memo:
            data = self.data.clone(memory_format=torch.preserve_format)
            memo[id(self)] = nn.Parameter(data, self.requires_grad)
        found: nn.Parameter = memo[id(self)]
        return found

    def reduced(self: Tensor, protocol: Any) -> Any:
        with _as(self, kind):
            return self.__reduce_ex__(protocol)

    body = {
        "grad": property(read, write, lambda self: set_grad(self, None)),
        "__deepcopy__": copied,
        "_phalanx_watched": True,
    }
    if kind is not nn.Parameter:  # a plain parameter is saved without its class
        body["__reduce_ex__"] = reduced
    if kind is torch.Tensor:  # so that what is computed from it is not watched
        body["__torch_function__"] = torch._C._disabled_torch_function_impl
    return type(kind.__name__, (kind,), body)


@contextmanager
def _as(tensor: Tensor, kind: type[Tensor]) -> Iterator[None]:
    watched, tensor.__class__ = type(tensor), kind
    try:
        yield
    finally:
        tensor.__class__ = watched
