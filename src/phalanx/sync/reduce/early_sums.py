"""Sends a host's gradients to other hosts before the step: those of one worker, or of several.

Several workers of a host show each other how many of their gradients are ready, from the last
parameter on. The leader, which exchanges with other hosts, sums the pieces that all have ready and
sends them while it computes the rest: the reduction inside a machine, then between machines, of
Goyal et al., "Accurate, large minibatch SGD" (2017), section 4, bucket by bucket.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from phalanx.core.background import BackgroundThread
from phalanx.sync.arena.arena import Locks, SubsetBarrier
from phalanx.sync.reduce.early_gradients import EarlyFromDevice, EarlyGradients, Outlet
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.shared_state import SharedState

if TYPE_CHECKING:
    from phalanx.sync.collective.algorithms.ahead import EarlySum

PAUSE, LOOKS = 0.001, 10_000
"""Seconds between two looks at how much the others have ready, and the most looks."""


class Alone(Outlet):
    """The only worker of its host: it sends its gradients as they become ready."""

    def __init__(self, ahead: EarlySum) -> None:
        self._ahead = ahead

    def ready(self, low: int) -> None:
        self._ahead.ready(low)

    def renew(self) -> None:
        pass


class Follower(Outlet):
    """A worker that shows the leader of its host which of its gradients are ready."""

    def __init__(self, cells: Any, slot: int, lock: AbstractContextManager[Any], size: int) -> None:
        self._cells, self._slot, self._lock, self._size = cells, slot, lock, size

    def ready(self, low: int) -> None:
        if low < self._cells[self._slot]:
            with self._lock:  # so that its next holder sees what was written before
                self._cells[self._slot] = low

    def renew(self) -> None:
        self._cells[self._slot] = self._size


class Leader(Outlet):
    """The worker that adds up the gradients of its host's workers in ``sums``, and sends them.

    ``own`` are its own gradients, ``rows`` those of the others, in the order in which a step adds
    them too; ``cells[slots]`` say from where on the others' gradients are ready.
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
        """Own gradients are ready from ``_low`` on; the sum was sent from ``_begun`` on."""
        self._turn, self._waits = threading.Lock(), False
        self._thread = BackgroundThread("phalanx-leader")

    def ready(self, low: int) -> None:
        with self._turn:
            self._low = low
            if self._advance() and not self._waits:
                self._waits = True
                self._thread.submit(self._wait)

    def _wait(self) -> None:
        """Look for progress of the others for a while; later pieces are sent with the step."""
        for _ in range(LOOKS):
            time.sleep(PAUSE)
            with self._turn:
                self._waits = self._waits and self._advance()
                if not self._waits:
                    return
        with self._turn:
            self._waits = False

    def _advance(self) -> bool:
        """Send what all have ready; return whether more of this worker's own waits for others."""
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
        """Send no more before the step; return from where on the sum was sent."""
        with self._turn:
            self._waits = False
            return self._begun

    def restore(self) -> None:
        """Overwrite the sums that were sent in vain with this worker's own gradients."""
        self._sums[self._begun :].copy_(self._own[self._begun :])

    def renew(self) -> None:
        with self._turn:
            self._waits = False
            self._low = self._begun = self._sums.numel()


BEGUN, LED = -2, -1
"""Places in ``SharedState.early``: where the sent sums begin, and whether the leader sends any."""


def make_early_sums(
    replica: Replica,
    shared: SharedState,
    ahead: EarlySum | None,
    members: Sequence[int],
    barrier: SubsetBarrier,
    *,
    leads: bool,
) -> EarlySums | None:
    """Make this member's part of early sums; ``None`` if gradients cannot be sent early.

    Collective among ``members``, those of this host. ``ahead`` is ``None`` except for the member
    that ``leads`` them.
    """
    cells, host = shared.early, shared.arena.host
    if leads:
        cells[:] = shared.gradients[0][0].numel()
        cells[LED] = ahead is not None and ahead.can_begin_early
    barrier()
    if not replica.staging.copies_aside:  # then no member sends early
        cells[LED] = False
    barrier()
    if not cells[LED]:
        return None
    rows, lock = shared.gradients[0], host.lock(Locks.EARLY)
    flat, leader = rows[host.rank], None
    way: Outlet
    if ahead is None:
        way = Follower(cells, host.rank, lock, flat.numel())
    elif len(members) == 1:
        way = Alone(ahead)
    else:
        others = [member for member in members if member != host.rank]
        own, sums = replica.staging.host_buffer(flat.numel(), flat.dtype), flat
        way = leader = Leader(
            ahead, cells, others, lock, own=own, rows=[rows[m] for m in others], sums=sums
        )
        flat = own
    gradients = (
        EarlyFromDevice(replica, flat, way)
        if replica.staging.away
        else EarlyGradients(replica.layouts[0], replica.parameters[0], flat, way, replica.scale)
    )
    return EarlySums(replica, shared, gradients, leader, barrier if len(members) > 1 else None)


class EarlySums:
    """One member's part in early sums; ``barrier`` is that of the members, if there are several."""

    def __init__(
        self,
        replica: Replica,
        shared: SharedState,
        gradients: EarlyGradients,
        leader: Leader | None,
        barrier: SubsetBarrier | None,
    ) -> None:
        self._replica, self._cells, self._gradients = replica, shared.early, gradients
        self._leader, self._barrier = leader, barrier

    def begin(self) -> None:
        """Let gradients be sent from now on."""
        self.distrust()
        self._replica.listen(self._gradients.watched, self._gradients.take, self.distrust)

    def distrust(self) -> None:
        self._gradients.distrust()
        if self._leader is not None:
            self._leader.stop()

    def settle(self) -> tuple[Collection[int], bool]:
        """Return which gradients need not be copied again, and whether any were sent in vain."""
        gone, stale = self._gradients.settle()
        if self._leader is None:
            return gone, stale
        layout = self._replica.layouts[0]
        begun = self._leader.stop()
        if stale:
            begun = layout.size
        self._cells[BEGUN] = begun
        return {i for i in gone if layout.places[i].start >= begun}, stale

    def still_to_add(self, stale: bool) -> int | None:
        """Return how many of the first numbers the leader has not yet added up; ``None``: all of
        them. Collective among the members of this host."""
        if self._barrier is None:
            return None
        if not stale:
            return int(self._cells[BEGUN])
        if self._leader is not None and not self._gradients.stale:
            self._leader.restore()
        self._barrier()
        return None

    def renew(self) -> None:
        """Prepare for the next step."""
        self._gradients.renew()
