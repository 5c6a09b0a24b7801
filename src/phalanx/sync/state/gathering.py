"""Every worker gives some bytes and gets those of all, through a small window of shared memory."""

from __future__ import annotations

import torch

from phalanx.sync.arena.arena import Arena

WINDOW = 1 << 20  # bytes of each worker that travel at once
BETWEEN_HOSTS = 1 << 16  # there they pass through the control memory, which is kept small
ABSENT = -1


class Gathering:
    """Made by all workers at the same place, when it is first needed: it costs memory."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._size = WINDOW if arena.hosts is None else BETWEEN_HOSTS
        sizes = arena.region("gathered sizes", arena.workers, torch.int64)
        window = arena.region("gathered", arena.workers * self._size, torch.uint8)
        self._sizes, self._window = sizes.numpy(), window.view(arena.workers, -1).numpy()

    def gather(self, mine: bytes | None) -> list[bytes]:
        """By rank, without those who give ``None``. Collective."""
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
