"""How pieces of gradients leave a host before the step: from one worker, or from several.

Several workers of a host show each other how far their gradients are there, from the last
parameter on. The one that exchanges with other hosts adds up what all of them have, piece by piece
while it computes the rest, and lets it go: the reduction inside a machine, then between machines,
of Goyal et al., "Accurate, large minibatch SGD" (2017), section 4, bucket by bucket.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from phalanx.core.background import BackgroundThread

if TYPE_CHECKING:
    from phalanx.sync.collective.algorithms.ahead import EarlySum

PAUSE, LOOKS = 0.001, 10_000
"""Seconds between two looks at how far the others are, and how many looks."""


class Outlet(ABC):
    """How a worker's gradients leave."""

    @abstractmethod
    def ready(self, low: int) -> None:
        """From ``low`` on they are there. A lost peer is for the step to report."""

    @abstractmethod
    def renew(self) -> None:
        """Of the next step nothing is there."""


class Alone(Outlet):
    """The only worker of its host: what is there goes."""

    def __init__(self, ahead: EarlySum) -> None:
        self._ahead = ahead

    def ready(self, low: int) -> None:
        self._ahead.ready(low)

    def renew(self) -> None:
        pass


class Follower(Outlet):
    """It shows the others of its host how far its gradients are there."""

    def __init__(self, cells: Any, slot: int, lock: AbstractContextManager[Any], size: int) -> None:
        self._cells, self._slot, self._lock, self._size = cells, slot, lock, size

    def ready(self, low: int) -> None:
        if low < self._cells[self._slot]:
            with self._lock:  # what was written before it is seen by who takes it after
                self._cells[self._slot] = low

    def renew(self) -> None:
        self._cells[self._slot] = self._size


class Leader(Outlet):
    """It adds up what all workers of its host have in ``sums``, and lets that go.

    ``own`` are its own gradients, ``rows`` those of the others, in the order in which they are
    added in a step too; ``slots`` are where the others say how far they are.
    """

    def __init__(
        self,
        ahead: EarlySum,
        cells: Any,
        slots: Sequence[int],
        lock: AbstractContextManager[Any],
        *,
        own: Tensor,
        rows: Sequence[Tensor],
        sums: Tensor,
    ) -> None:
        self._ahead, self._cells, self._slots, self._lock = ahead, cells, list(slots), lock
        self._own, self._rows, self._sums = own, rows, sums
        self._low = self._begun = sums.numel()
        """From where on its own gradients are there; and from where on the sum has gone."""
        self._turn, self._waits = threading.Lock(), False
        self._thread = BackgroundThread("phalanx-leader")

    def ready(self, low: int) -> None:
        with self._turn:
            self._low = low
            if self._advance() and not self._waits:
                self._waits = True
                self._thread.submit(self._wait)

    def _wait(self) -> None:
        """For others, who say nothing but in their cells; those that are far behind go late."""
        for _ in range(LOOKS):
            time.sleep(PAUSE)
            with self._turn:
                self._waits = self._waits and self._advance()
                if not self._waits:
                    return
        with self._turn:
            self._waits = False

    def _advance(self) -> bool:
        """Let go what all have; whether there is more of its own."""
        if self._low >= self._begun:
            return False
        with self._lock:
            low = max(self._low, *(int(self._cells[slot]) for slot in self._slots))
        if low < self._begun:
            piece = slice(low, self._begun)
            total, first = self._sums[piece], self._rows[0]
            torch.add(self._own[piece], first[piece], out=total)
            for row in self._rows[1:]:
                total.add_(row[piece])
            self._begun = low
            self._ahead.ready(low)
        return self._low < self._begun

    def stop(self) -> int:
        """From where on the sum has gone; no more goes before the step."""
        with self._turn:
            self._waits = False
            return self._begun

    def restore(self) -> None:
        """What has gone does not count: the sums are its own gradients again, to be added to."""
        self._sums[self._begun :].copy_(self._own[self._begun :])

    def renew(self) -> None:
        with self._turn:
            self._waits = False
            self._low = self._begun = self._sums.numel()
