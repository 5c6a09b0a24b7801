"""Gives out samples by a counter in shared memory, from which free-running teams claim chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from phalanx.policies.sample_assignment import (
    LANE_CELLS,
    Counter,
    Lease,
    Segment,
    claim,
    cut,
    lease_of,
    split_among_all,
)
from phalanx.sync.arena.arena import Arena, Locks

if TYPE_CHECKING:
    from phalanx.train.samples.outstanding_leases import OutstandingLeases
    from phalanx.train.samples.pass_lanes import PassLanes

RING = 64
"""Most chunks that a team's fastest member may be ahead of its slowest."""
AHEAD = 4
"""Chunks that a worker claims at once, if others are on other machines."""
_TICKET, _NUMBER, _START, _WANT, _WHOLE, _REACHED, _FIRST_SHARE = range(7)
_NUMBERS = 1 << 32  # most numbers that one ticket may use


class SharedLeases:
    def __init__(self, arena: Arena, least: int = 1) -> None:
        """Make the counter; ``least``: the least samples of a part, if there are that many."""
        self._arena, self.least = arena, least
        self._cells = arena.region("claims", 4, torch.int64).numpy()
        # Each worker has a ring of what it claimed for its team, with the members' parts of it.
        width = _FIRST_SHARE + 2 * arena.workers
        rings = arena.region("team claims", arena.workers * RING * width, torch.int64)
        self._rings = rings.view(arena.workers, RING, width).numpy()
        self._taken = arena.region("team taken", arena.workers, torch.int64).numpy()
        # [ticket, …]: the rows of blocks that come next, while workers claim them.
        lanes = arena.region("lanes", 1 + LANE_CELLS * arena.workers, torch.int64)
        self._lane_cells = lanes.numpy()
        self.lanes: PassLanes | None = None
        """The lanes of the pass, if its data come in blocks."""
        self.given: OutstandingLeases | None = None
        """What each worker holds, if others go on after a loss; only between machines."""
        if arena.hosts is not None:
            from phalanx.train.samples.outstanding_leases import OutstandingLeases

            self.given = OutstandingLeases(arena)
        if arena.rank == 0:
            self._cells[:] = (-1, 0, 0, -1)
            self._lane_cells[0] = -1
            self._rings[:] = -1
        arena.barrier()

    def begin_teams(self) -> None:
        """Begin with new teams: earlier claims of teams do not count. Collective."""
        self._arena.barrier()
        self._taken[self._arena.rank] = 0
        if self._arena.rank == 0:
            self._rings[:] = -1
        self._arena.barrier()

    def next(self, ticket: int, segment: Segment, want: int) -> Lease | None:
        with self._arena.lock(Locks.CLAIMS):
            return self._claim(ticket, segment, want)

    def next_few(self, ticket: int, segment: Segment, want: int) -> list[Lease]:
        """Claim several chunks in one visit to the counter; none if all are given out. Between
        machines a visit takes a good part of a step. Near the end of the segment a worker claims
        one chunk at a time, so that it does not hold several while the others wait."""
        found: list[Lease] = []
        assert self.given is not None
        with self._arena.lock(Locks.CLAIMS):
            while len(found) < AHEAD:
                lease = self._claim(ticket, segment, want)
                if lease is None:
                    # Take back a lost worker's samples one at a time, too.
                    if not found and (back := self.given.take_back(ticket)):
                        again = self.given.record(ticket, back.again(0), back.want)
                        found.append(replace(again, batch_end=self.position))
                    break
                recorded = self.given.record(ticket, lease, want)
                found.append(replace(recorded, batch_end=lease.batch_end))
                if segment.end - lease.batch_end < 2 * AHEAD * self._arena.workers * want:
                    break
        return found

    def reach(self, ticket: int, segment: Segment, start: int, batch: int) -> int:
        """Return the position up to which this worker, now at ``start``, may train before it asks
        again, if all take a part of each batch. After a cut, all end where the farthest is."""
        ahead = 1 if self.given is None else AHEAD
        with self._arena.lock(Locks.CLAIMS):
            counter = self._counter()
            if counter.ticket > ticket:  # another worker has gone on, so this segment is not cut
                return segment.end
            if counter.ticket == ticket and (counter.cut == ticket or counter.position > start):
                return counter.position
            position = min(segment.end, start + ahead * batch)
            self._store(Counter(ticket, position, segment.end))
            return position

    def _claim(self, ticket: int, segment: Segment, want: int, lane: int = -1) -> Lease | None:
        counter, lease = claim(self._counter(), ticket, segment, want, self.least)
        if self.lanes is not None and lease is not None:
            return self._claim_of_lane(counter, lease, want, segment, lane)
        self._store(counter)
        return lease

    def _claim_of_lane(
        self, counter: Counter, lease: Lease, want: int, segment: Segment, lane: int
    ) -> Lease | None:
        """Claim at most as many rows as ``lease`` has from this worker's lane; ``None`` if only
        other workers can read the remaining rows."""
        assert self.lanes is not None
        if self._lane_cells[0] != counter.ticket:  # publish the lanes to all
            self._lane_cells[1:] = self.lanes.cells
            self._lane_cells[0] = counter.ticket
        worker = self._arena.rank if lane < 0 else lane
        most = segment.end - lease.start
        rows = self.lanes.claim(self._lane_cells[1:], worker, lease.samples, most, self.least)
        if rows is None:
            return None
        position, count = lease.start + rows[1] - rows[0], rows[1] - rows[0]
        self._store(replace(counter, position=position))
        return replace(lease_of(rows[0], 0, count, count, want), batch_end=position)

    def others_have_more(self, ticket: int, segment: Segment) -> bool:
        """Whether samples are left that only other workers can read. This worker then waits,
        because a single counter is enough only if no worker is a segment ahead of it."""
        counter, lanes = self._counter(), self.lanes
        if lanes is None or not lanes.pinned or counter.cut == ticket:
            return False
        if counter.ticket != ticket or counter.position >= segment.end:
            return counter.ticket < ticket
        left = lanes.left_in(self._lane_cells[1:])
        return any(rows for rank, rows in enumerate(left) if rank not in self._arena.lost)

    def wait_for_others(self, ticket: int, segment: Segment) -> None:
        self._arena.await_(lambda: not self.others_have_more(ticket, segment))

    def end_lanes(self, ticket: int) -> None:
        """Publish to all workers what has been claimed of the segment."""
        if self.lanes is not None and self._lane_cells[0] == ticket:
            self.lanes.cells[:] = self._lane_cells[1:]

    def next_of_team(
        self,
        ticket: int,
        segment: Segment,
        want: int,
        members: Sequence[int],
        shares: Sequence[float],
        gone: Callable[[], bool] | None = None,
    ) -> Lease | None:
        """Return this member's part of the team's next chunk. The first member to come claims the
        chunk, and writes it down for the others."""
        rank, first = self._arena.rank, members[0]
        if self._taken[rank] // _NUMBERS != ticket:
            self._taken[rank] = ticket * _NUMBERS
            self._arena.wake()
        taken = int(self._taken[rank])
        self._arena.await_(self._together(taken, members), gone)
        number = taken % _NUMBERS
        with self._arena.lock(Locks.CLAIMS):
            cell = self._rings[first, number % RING]
            if cell[_NUMBER] != number or cell[_TICKET] != ticket:
                lease = self._claim(ticket, segment, want, first)
                cell[_TICKET], cell[_NUMBER], cell[_WANT] = ticket, number, want
                cell[_START] = lease.start if lease else -1
                whole = cell[_WHOLE] = lease.samples if lease else 0
                cell[_REACHED] = lease.batch_end if lease else 0
                ends = [0, *split_among_all(max(1, whole), shares, self.least)]
                for i in range(len(members)):
                    cell[_FIRST_SHARE + 2 * i : _FIRST_SHARE + 2 * i + 2] = ends[i : i + 2]
            found = [int(v) for v in cell]
            self._taken[rank] = taken + 1
        self._arena.wake()
        return _part(found, list(members).index(rank))

    def _together(self, taken: int, members: Sequence[int]) -> Callable[[], bool]:
        """Return a test whether all members have come to this ticket, and none is a ring behind."""
        chosen, ticket = list(members), taken // _NUMBERS

        def ready() -> bool:
            others = self._taken[chosen]
            here = bool((others // _NUMBERS >= ticket).all())
            return here and taken - int(others.min()) < RING

        return ready

    def cut(self) -> bool:
        """Give out no more of the present segment; ``False`` if all was given already."""
        with self._arena.lock(Locks.CLAIMS):
            counter = cut(self._counter())
            if counter is not None:
                self._store(counter)
            return counter is not None

    def is_cut(self, ticket: int) -> bool:
        with self._arena.lock(Locks.CLAIMS):
            return self._counter().cut == ticket

    @property
    def position(self) -> int:
        return int(self._cells[1])

    def _counter(self) -> Counter:
        return Counter(*self._cells.tolist())

    def _store(self, counter: Counter) -> None:
        self._cells[:] = (counter.ticket, counter.position, counter.end, counter.cut)
        if self.lanes is not None and self.lanes.pinned:
            self._arena.wake()


def _part(cell: list[int], index: int) -> Lease | None:
    if cell[_START] < 0:
        return None
    first, last = cell[_FIRST_SHARE + 2 * index :][:2]
    lease = lease_of(cell[_START], first, last, cell[_WHOLE], cell[_WANT])
    return replace(lease, batch_end=cell[_REACHED])
