"""Records which samples each worker holds untrained, so that others train them if it is lost.

Between machines workers write down here what they claim, and whether they still hold samples of a
ticket. The store decides what a lost worker has trained (see ``Strategy.fence``): the rest stays in
its row, for the first worker that comes to the end of the ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from phalanx.core.errors import InputError
from phalanx.policies.sample_assignment import Applied, Given, Lease, SettledSamples, untrained
from phalanx.sync.arena.arena import Arena, Locks

RING = 64
"""Leases of a worker that are remembered: more than it claims ahead and gathers for one step."""
_BUSY, _TICKET, _COUNT, _TOTAL, _BASE, _BACK, _CARRIED, _STEPPED, _WAITS, _SETTLED = range(10)
_APPLIED, _MEETS = 10, 11
_WIDTH = 12
_NOTHING = -1
Fence = Callable[[int], Applied | None]
"""Returns how far the updates of a lost worker have come (see ``Strategy.fence``)."""


class OutstandingLeases:
    """The shared record: each worker writes its own row, and lost workers' under the lock."""

    def __init__(self, arena: Arena) -> None:
        self._arena, workers = arena, arena.workers
        rows = arena.region("given out", workers * _WIDTH, torch.int64)
        self._rows = rows.view(workers, _WIDTH).numpy()
        rings = arena.region("given leases", workers * RING * 4, torch.int64)
        self._rings = rings.view(workers, RING, 4).numpy()
        if arena.rank == 0:
            self._rows[:, [_BUSY, _TICKET, _WAITS]] = _NOTHING

    # -- of this worker ----------------------------------------------------------------------

    @property
    def _mine(self) -> NDArray[np.int64]:
        row: NDArray[np.int64] = self._rows[self._arena.rank]
        return row

    def count(self, total: int) -> None:
        """Set how many samples this worker has had before it claims any."""
        self._mine[_TOTAL] = self._mine[_CARRIED] = self._mine[_STEPPED] = total

    def record(self, ticket: int, lease: Lease, want: int) -> Lease:
        """Record, under the lock, that this worker got ``lease``; return it with its total."""
        row, rank = self._mine, self._arena.rank
        if row[_TICKET] != ticket:
            row[_TICKET], row[_BASE] = ticket, row[_TOTAL]
        given = Given(lease.start, lease.end, want, int(row[_TOTAL]) + lease.samples)
        cell = self._rings[rank, int(row[_COUNT]) % RING]
        cell[:] = (given.start, given.end, given.want, given.total)
        row[_COUNT] += 1
        row[_TOTAL], row[_BUSY], row[_WAITS] = given.total, ticket, _NOTHING
        return given.again(given.total - given.samples)

    def end(self, had: int, stepped: int, ticket: int = _NOTHING) -> None:
        """Note that this worker holds no samples, and waits for those that hold some of ``ticket``.
        It was given ``had`` samples and stepped with ``stepped``: gradients may wait for a step."""
        self._mine[_CARRIED], self._mine[_STEPPED] = had, stepped
        self._mine[_BUSY], self._mine[_WAITS] = _NOTHING, ticket
        self._arena.wake()

    def meet(self, stepped: int) -> None:
        """Note that this worker waits for all others, whatever samples it holds, and has pushed all
        ``stepped`` samples; this is kept here because a new store does not know it."""
        self._mine[_APPLIED], self._mine[_MEETS] = stepped, 1
        self._arena.wake()

    def met(self) -> None:
        self._mine[_MEETS] = 0

    # -- of the others -----------------------------------------------------------------------

    def waits(self, rank: int) -> bool:
        """Whether worker ``rank`` waits for samples that this worker holds."""
        busy = self._mine[_BUSY]
        return bool(busy != _NOTHING and self._rows[rank, _WAITS] == busy)

    def over(self, ticket: int) -> bool:
        """Whether no worker holds samples of ``ticket``. Once true, this stays true."""
        return not bool((self._rows[:, _BUSY] == ticket).any())

    def has_back(self, ticket: int) -> bool:
        """Whether samples of a lost worker wait for a worker that trains them."""
        rows = self._rows
        there = (rows[:, _SETTLED] == 1) & (rows[:, _BUSY] == ticket)
        return bool(there.any())

    def wait(self, ticket: int, fence: Fence) -> Iterator[SettledSamples]:
        """Wait until no worker holds samples of ``ticket``, or a lost one's can be taken; yield
        what is settled of lost workers meanwhile."""

        def is_news() -> bool:
            known = self.over(ticket) or self.has_back(ticket) or bool(self._unsettled())
            return known or self._meeting(ticket) is not None

        while not (self.over(ticket) or self.has_back(ticket)):
            self._arena.await_(is_news)
            yield from self.settle_all(fence)
            if (other := self._meeting(ticket)) is not None:
                raise InputError(
                    f"worker {other} changed which parameters it trains in the middle of a pass "
                    f"over the data, which worker {self._arena.rank} has already finished",
                    "Unfreeze or add parameters before the loop over run.batches.",
                )

    def _meeting(self, ticket: int) -> int | None:
        """Return a worker that waits for all others although it holds samples of ``ticket``."""
        found = ((self._rows[:, _BUSY] == ticket) & (self._rows[:, _MEETS] == 1)).nonzero()[0]
        return next((int(rank) for rank in found if rank not in self._arena.lost), None)

    def settle_all(self, fence: Fence) -> Iterator[SettledSamples]:
        """Settle the samples of all lost workers that no other worker has settled."""
        found = (self._settle(rank, fence(rank)) for rank in self._unsettled())
        yield from (settled for settled in found if settled is not None)

    def _unsettled(self) -> list[int]:
        """Return the lost workers whose samples are not settled yet."""
        lost = list(self._arena.lost)  # a copy, because another thread may just learn of one more
        return [r for r in lost if self._rows[r, _COUNT] and not self._rows[r, _SETTLED]]

    def _settle(self, rank: int, applied: Applied | None) -> SettledSamples | None:
        """Settle a lost worker's samples by what the store ``applied``; ``None`` if settled
        already."""
        with self._arena.lock(Locks.CLAIMS):
            row = self._rows[rank]
            if row[_SETTLED]:
                return None
            count, busy = int(row[_COUNT]), row[_BUSY] != _NOTHING
            total, had, stepped = (int(row[c]) for c in (_TOTAL, _CARRIED, _STEPPED))
            applied, before = applied or Applied(stepped, total), int(row[_APPLIED])
            applied = Applied(max(applied.whole, before), max(applied.begun, before))
            here = [one for one in self._given(rank) if busy and one.total > row[_BASE]]
            back, lost = untrained(here, applied)
            # Lost are samples that the ring forgot, or without a step when the last ticket ended.
            known = here[0].total - here[0].samples if here else total
            forgot = max(0, known - max(applied.begun, int(row[_BASE]))) if busy else 0
            had = min(had, int(row[_BASE])) if busy else had
            carried = max(0, had - max(stepped, applied.begun))
            row[_BACK], row[_SETTLED] = count - back, 1
            if not back:
                row[_BUSY] = _NOTHING
            samples = sum(one.samples for one in here[len(here) - back :])
            trained = total - samples - lost - forgot - carried
            of_pass = max(0, trained - int(row[_BASE])) if busy else 0
            found = SettledSamples(rank, trained, of_pass, samples, lost + forgot + carried)
        self._arena.wake()
        return found

    def take_back(self, ticket: int) -> Given | None:
        """Take, under the lock, the next lease of ``ticket`` that a lost worker did not train."""
        for rank, row in enumerate(self._rows):
            if row[_SETTLED] and row[_BUSY] == ticket:
                given = Given(*map(int, self._rings[rank, int(row[_BACK]) % RING]))
                row[_BACK] += 1
                if row[_BACK] == row[_COUNT]:
                    row[_BUSY] = _NOTHING
                return given
        return None

    def _given(self, rank: int) -> list[Given]:
        """Return the leases of worker ``rank`` that are remembered, oldest first."""
        count = int(self._rows[rank, _COUNT])
        numbers = range(max(0, count - RING), count)
        return [Given(*map(int, self._rings[rank, n % RING])) for n in numbers]
