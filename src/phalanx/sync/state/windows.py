"""Exchanges tensors and bytes among workers through small windows of shared memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from phalanx.sync.arena.arena import Arena

WINDOW = 1 << 20  # elements; frozen weights may be large, and pass through here only once
GATHERED_BYTES = 1 << 20  # bytes of each worker that are sent at once
BETWEEN_HOSTS = 1 << 16  # between hosts they pass through the control memory, which is kept small
ABSENT = -1


@torch.no_grad()
def broadcast(arena: Arena, tensors: Iterable[Tensor]) -> None:
    """Copy the first worker's ``tensors`` to every worker, in place. Collective."""
    found = list(tensors)
    if arena.hosts is not None:
        shapes = [(tuple(t.shape), str(t.dtype)) for t in found]
        arena.region(f"untrained {shapes}", 0, torch.uint8)  # check that all mean the same tensors
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
        if flat.data_ptr() != tensor.data_ptr():
            tensor.copy_(flat.view(tensor.shape))


class Gathering:
    """Gives all workers the bytes of every worker.

    Made by all workers at the same place, when it is first needed: it costs memory.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._size = GATHERED_BYTES if arena.hosts is None else BETWEEN_HOSTS
        sizes = arena.region("gathered sizes", arena.workers, torch.int64)
        window = arena.region("gathered", arena.workers * self._size, torch.uint8)
        self._sizes, self._window = sizes.numpy(), window.view(arena.workers, -1).numpy()

    def gather(self, mine: bytes | None) -> list[bytes]:
        """Return the workers' answers by rank, without those who give ``None``. Collective."""
        arena, size = self._arena, self._size
        self._sizes[arena.rank] = ABSENT if mine is None else len(mine)
        arena.barrier()
        sizes = self._sizes.tolist()
        found = [bytearray() for _ in sizes]
        for start in range(0, max(1, *sizes), size):
            part = memoryview(mine or b"")[start : start + size]
            self._window[arena.rank, : len(part)] = part
            arena.barrier()
            for rank, whole in enumerate(sizes):
                found[rank] += self._window[rank, : max(0, min(size, whole - start))].tobytes()
            arena.barrier()
        return [
            bytes(found[rank])
            for rank, whole in enumerate(sizes)
            if whole != ABSENT and rank not in arena.lost
        ]
