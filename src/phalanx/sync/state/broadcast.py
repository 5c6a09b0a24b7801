"""Give every worker the first one's tensors, once, through a small window of shared memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from phalanx.sync.arena.arena import Arena

WINDOW = 1 << 20  # elements: frozen weights may be large, and are needed here only once


@torch.no_grad()
def broadcast(arena: Arena, tensors: Iterable[Tensor]) -> None:
    """Collective; in place."""
    found = list(tensors)
    if arena.hosts is not None:
        shapes = [(tuple(t.shape), str(t.dtype)) for t in found]
        arena.region(f"untrained {shapes}", 0, torch.uint8)  # all have to mean the same
    if arena.hosts is not None and arena.host.rank == 0:
        arena.hosts.broadcast(found)
    _within(arena.host, found)


def _within(arena: Arena, tensors: Iterable[Tensor]) -> None:
    windows: dict[torch.dtype, Tensor] = {}
    for tensor in tensors:
        if tensor.dtype not in windows:
            windows[tensor.dtype] = arena.region(f"window.{tensor.dtype}", WINDOW, tensor.dtype)
        window, flat = windows[tensor.dtype], tensor.detach().reshape(-1).cpu()
        for start in range(0, flat.numel(), WINDOW):
            part = flat[start : start + WINDOW]
            if arena.rank == 0:
                window[: len(part)] = part
            arena.barrier()
            part.copy_(window[: len(part)])
            arena.barrier()
        tensor.copy_(flat.view(tensor.shape))
