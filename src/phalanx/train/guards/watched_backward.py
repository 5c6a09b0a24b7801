"""Losses are looked at where they go backwards, also when the script itself sends them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Current(threading.local):
    look: Callable[[Tensor, Tensor | None], None] | None = None


_current = _Current()


def watch_backward(look: Callable[[Tensor, Tensor | None], None] | None) -> None:
    """``look`` at each loss that this thread sends backwards, and at what it is multiplied by:
    ``loss.backward()`` calls ``torch.autograd.backward``."""
    _current.look = look
    plain: Any = torch.autograd.backward
    if look is None or hasattr(plain, "_phalanx_watches"):
        return

    @functools.wraps(plain)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _current.look is not None:
            losses = [tensors] if isinstance(tensors, Tensor) else tensors
            many = grad_tensors is not None and not isinstance(grad_tensors, Tensor)
            factors = grad_tensors if many else [grad_tensors] * len(losses)
            for loss, factor in zip(losses, factors, strict=False):
                if isinstance(loss, Tensor):
                    _current.look(loss, factor)
        return plain(tensors, grad_tensors, *args, **kwargs)

    setattr(backward, "_phalanx_watches", True)  # noqa: B010
    setattr(torch.autograd, "backward", backward)  # noqa: B010
