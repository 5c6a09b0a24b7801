"""Memory of a worker's own that others see: what has changed in it, and what others changed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import InputError
from phalanx.sync.arena.remote.coordinator_client import NOTHING, Changes

ALIGN = 64
Bytes = NDArray[np.uint8]


class MemoryBlock:
    """Memory from address ``base`` on, and what the coordinator knows of it."""

    def __init__(self, base: int, capacity: int) -> None:
        self.base, self._capacity, self.end = base, capacity, 0
        self._memory: Bytes = np.zeros(capacity, np.uint8)  # only what is used costs memory
        self._known: Bytes = np.zeros(capacity, np.uint8)

    def allocate(self, size: int) -> memoryview:
        start = self.end
        if start + size > self._capacity:
            raise InputError(
                "the model's buffers do not fit into the memory that machines share",
                "Use buffers='first' in phalanx.join, or fewer workers.",
            )
        self.end = -(-(start + size) // ALIGN) * ALIGN
        view: memoryview = self._memory[start : start + size].data
        return view

    def clear(self) -> None:
        self._memory[: self.end] = 0
        self._known[: self.end] = 0
        self.end = 0

    def changes(self) -> Changes:
        """(runs, their places, their bytes) since this was asked last."""
        now = self._memory[: self.end].copy()  # another thread may write meanwhile
        at = np.flatnonzero(now != self._known[: self.end])
        if not len(at):
            return NOTHING
        breaks = np.flatnonzero(np.diff(at) != 1) + 1
        starts = at[np.concatenate(([0], breaks))]
        ends = at[np.concatenate((breaks - 1, [len(at) - 1]))] + 1
        places = np.empty((len(starts), 2), np.uint64)
        places[:, 0] = starts + self.base
        places[:, 1] = ends - starts
        values = now[at]
        self._known[at] = values
        return len(starts), places.tobytes(), values.tobytes()

    def apply(self, start: int, values: Bytes) -> None:
        at = slice(start - self.base, start - self.base + len(values))
        self._memory[at] = values
        self._known[at] = values


def joined(first: Changes, second: Changes) -> Changes:
    if second is NOTHING:
        return first
    return first[0] + second[0], first[1] + second[1], first[2] + second[2]
