"""Keeps equal data of several workers in one process once, until a worker writes to its copy.

Threads run the same script, so each makes the same tensors. Equal ones become mappings of the same
pages; the system copies a page when a worker writes to it.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from phalanx.core.context import current

SMALL = 1 << 20
"""Tensors of fewer bytes are not worth sharing."""


@dataclass(frozen=True)
class _Kept:
    """One tensor's values, in a file without a name."""

    descriptor: int
    like: Tensor

    def view(self) -> Tensor:
        pages = mmap.mmap(self.descriptor, self.like.nbytes, flags=mmap.MAP_PRIVATE)
        return torch.frombuffer(pages, dtype=self.like.dtype).view(self.like.shape)

    def __del__(self) -> None:
        os.close(self.descriptor)


def _keep(tensor: Tensor) -> _Kept:
    descriptor = os.memfd_create("phalanx-data")
    os.ftruncate(descriptor, tensor.nbytes)
    with mmap.mmap(descriptor, tensor.nbytes) as pages:
        torch.frombuffer(pages, dtype=tensor.dtype).view(tensor.shape).copy_(tensor)
    return _Kept(descriptor, torch.empty_like(tensor, device="meta"))


def share(*sets: Any) -> None:
    """Let equal tensors of several workers use the same pages; their values stay the same."""
    context = current()
    if context is None:
        return
    for data in sets:
        tensors = data.tensors if isinstance(data, TensorDataset) else data
        for tensor in tensors if isinstance(tensors, list | tuple) else [tensors]:
            if isinstance(tensor, Tensor) and _is_worth_it(tensor):
                kept = context.hub.kept.setdefault((tensor.shape, tensor.dtype), [])
                views = (one.view() for one in kept)
                same = next((view for view in views if torch.equal(view, tensor)), None)
                if same is None:
                    kept.append(_keep(tensor))
                    same = kept[-1].view()
                tensor.data = same


def _is_worth_it(tensor: Tensor) -> bool:
    """Whether a tensor is large, ordinary, and uses all of its storage."""
    return (
        tensor.nbytes >= SMALL
        and type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )
