"""The ledger's counter in shared memory: free-running workers claim their next chunk here."""

from __future__ import annotations

import torch

from phalanx.data.ledger import Counter, Lease, Segment, claim
from phalanx.sync.transport.arena import Arena
from phalanx.sync.transport.locks import Locks


class SharedClaims:
    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._cells = arena.region("claims", 2, torch.int64).numpy()
        self._cells[:] = (-1, 0)
        arena.barrier()

    def next(self, ticket: int, segment: Segment, want: int) -> Lease | None:
        with self._arena.lock(Locks.CLAIMS):
            counter = Counter(int(self._cells[0]), int(self._cells[1]))
            counter, lease = claim(counter, ticket, segment, want)
            self._cells[:] = (counter.ticket, counter.position)
        return lease
