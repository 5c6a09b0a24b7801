"""A host's gradients on their way to other hosts before the step: what its workers agree on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from phalanx.sync.arena.arena import Circle, Locks
from phalanx.sync.reduce.early_from_device import EarlyFromDevice
from phalanx.sync.reduce.early_gradients import EarlyGradients
from phalanx.sync.reduce.local_pieces import Alone, Follower, Leader, Outlet
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.shared_state import SharedState

if TYPE_CHECKING:
    from phalanx.sync.collective.algorithms.ahead import EarlySum

BEGUN, LED = -2, -1
"""In ``SharedState.early``."""


def make_early_sums(
    replica: Replica,
    shared: SharedState,
    ahead: EarlySum | None,
    members: Sequence[int],
    circle: Circle,
    *,
    leads: bool,
) -> EarlySums | None:
    """Where something may go as it is. Collective among ``members``, those of this host; ``ahead``
    is known to the one that ``leads`` them."""
    cells, host = shared.early, shared.arena.host
    if leads:
        cells[:] = shared.gradients[0][0].numel()
        cells[LED] = ahead is not None and ahead.can_begin_early
    circle.wait()
    if not replica.staging.copies_aside:  # then none of them goes early
        cells[LED] = False
    circle.wait()
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
    return EarlySums(replica, shared, gradients, leader, circle if len(members) > 1 else None)


class EarlySums:
    """One member's part in it. ``circle``: if there are several."""

    def __init__(
        self,
        replica: Replica,
        shared: SharedState,
        gradients: EarlyGradients,
        leader: Leader | None,
        circle: Circle | None,
    ) -> None:
        self._replica, self._cells, self._gradients = replica, shared.early, gradients
        self._leader, self._circle = leader, circle

    def begin(self) -> None:
        """From now on gradients may go."""
        self.distrust()
        self._replica.listen(self._gradients.watched, self._gradients.take, self.distrust)

    def distrust(self) -> None:
        self._gradients.distrust()
        if self._leader is not None:
            self._leader.stop()

    def settle(self) -> tuple[Collection[int], bool]:
        """Whose gradients are left where they are, and whether something has gone in vain."""
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
        """So many numbers, from the first on: the leader has added up the others; ``None`` is all.
        Collective among the members of this host."""
        if self._circle is None:
            return None
        if not stale:
            return int(self._cells[BEGUN])
        if self._leader is not None and not self._gradients.stale:
            self._leader.restore()
        self._circle.wait()
        return None

    def renew(self) -> None:
        """The step is over."""
        self._gradients.renew()
