"""An arena for workers that are threads of one process (debugging and tests)."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch

from phalanx.core.errors import InputError, PeerLost
from phalanx.sync.transport.arena import LEFT

SLICE_SECONDS = 0.1


class Hub:
    """What the threads of one run share; :meth:`arena` gives each rank its view."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.aborted = False
        self._condition = threading.Condition()
        self._arrived = self._generation = 0
        self._regions: dict[int, torch.Tensor] = {}
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._guard = threading.Lock()

        self._arenas = [ThreadArena(self, rank, workers) for rank in range(workers)]

    def arena(self, rank: int) -> ThreadArena:
        return self._arenas[rank]

    def abort(self) -> None:
        """A thread has failed: whoever waits for it gives up."""
        self.aborted = True

    def wait(self, gone: Callable[[], bool] | None) -> None:
        with self._condition:
            self._arrived += 1
            if self._arrived == self.workers:
                self._arrived = 0
                self._generation += 1
                self._condition.notify_all()
                return
            generation = self._generation
            while generation == self._generation:
                self._condition.wait(SLICE_SECONDS)
                in_vain = self.aborted or (gone is not None and gone())
                if in_vain and generation == self._generation:
                    raise PeerLost(*LEFT)

    def region(self, number: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        with self._guard:
            if number not in self._regions:
                self._regions[number] = torch.zeros(count, dtype=dtype)
            found = self._regions[number]
        if found.numel() != count or found.dtype != dtype:
            raise InputError("the workers built different models", "Build the same one on each.")
        return found

    def forget(self) -> None:
        self._regions.clear()

    def lock(self, index: int) -> threading.Lock:
        with self._guard:
            return self._locks[index]


@dataclass
class ThreadArena:
    """One rank's view of a :class:`Hub`."""

    hub: Hub
    rank: int
    workers: int
    _asked: int = 0

    def region(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        self._asked += 1
        return self.hub.region(self._asked, count, dtype)

    def rewind(self) -> None:
        self._asked = 0
        self.barrier()
        if self.rank == 0:
            self.hub.forget()
        self.barrier()

    def barrier(self, gone: Callable[[], bool] | None = None) -> None:
        self.hub.wait(gone)

    def lock(self, index: int) -> threading.Lock:
        self._check_abort()
        return self.hub.lock(index)

    def pause(self) -> None:
        self._check_abort()
        time.sleep(0.001)

    def _check_abort(self) -> None:
        if self.hub.aborted:
            raise PeerLost(*LEFT)
