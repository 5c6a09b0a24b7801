"""Data that several workers of one process have: kept once, and private to whoever writes to it.

Threads run the same script, so each makes the same tensors. Equal ones become mappings of the
same pages, which the system copies only where somebody writes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from phalanx.core.context import current

POSSIBLE = hasattr(os, "memfd_create")
SMALL = 1 << 20
"""Bytes below which it is not worth it."""


@dataclass(frozen=True)
class _Kept:
    """One tensor's values, in a file without a name."""

    descriptor: int
    size: int
    shape: torch.Size
    dtype: torch.dtype

    def view(self) -> Tensor:
        pages = mmap.mmap(self.descriptor, self.size, flags=mmap.MAP_PRIVATE)
        return torch.frombuffer(pages, dtype=self.dtype).view(self.shape)

    def __del__(self) -> None:
        os.close(self.descriptor)


def _keep(tensor: Tensor) -> _Kept:
    size = tensor.numel() * tensor.itemsize
    descriptor = os.memfd_create("phalanx-data")
    kept = _Kept(descriptor, size, tensor.shape, tensor.dtype)
    os.ftruncate(descriptor, size)
    with mmap.mmap(descriptor, size) as pages:
        target = torch.frombuffer(pages, dtype=tensor.dtype).view(tensor.shape)
        target.copy_(tensor)
        del target
    return kept


def once(key: Hashable, read: Callable[[], tuple[Sequence[Tensor], Any]]) -> tuple[Any, Any]:
    """Tensors, and something about them: read by the first worker of a process, for all."""
    context = current()
    if context is None or not POSSIBLE:
        return read()
    found = context.hub.kept
    if ("read", key) not in found:
        tensors, about = read()
        found["read", key] = [_keep(t) if _large(t) else t.clone() for t in tensors], about
    kept, about = found["read", key]
    return [one.view() if isinstance(one, _Kept) else one.clone() for one in kept], about


def share(*sets: Any) -> None:
    """Let tensors that another worker has too lie in the same pages; nothing else changes."""
    for data in sets:
        _share(data)


def _share(data: Any) -> None:
    context = current()
    if context is None or not POSSIBLE:
        return
    if isinstance(data, TensorDataset):
        data = data.tensors
    for tensor in data if isinstance(data, list | tuple) else [data]:
        if isinstance(tensor, Tensor) and _large(tensor) and _own(tensor):
            key = "shared", tensor.shape, tensor.dtype
            candidates = context.hub.kept.setdefault(key, [])
            views = (one.view() for one in candidates)
            same = next((view for view in views if torch.equal(view, tensor)), None)
            if same is None:
                candidates.append(_keep(tensor))
                same = candidates[-1].view()
            tensor.data = same


def _large(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.itemsize >= SMALL


def _own(tensor: Tensor) -> bool:
    """An ordinary tensor that is all of its memory."""
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
    )
