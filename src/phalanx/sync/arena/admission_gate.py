"""Keeps the clocks of a store's workers in shared memory, and admits workers by a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from phalanx.policies.admission import AWAY, Clocks, Rule, rejoin
from phalanx.sync.arena.arena import Arena, Locks


class Party(Protocol):
    """The strategy of one optimizer, as its gate sees it."""

    def land(self) -> None:
        """Return when all that this worker has pushed is applied."""

    def take(self) -> None:
        """Copy the newest parameters."""


class AdmissionGate:
    """Counts a worker's pushes as its clock, and lets it go on when the rule admits it.

    All optimizers of a worker share one clock: with one for each, two workers could wait for each
    other at different ones.
    """

    def __init__(
        self,
        arena: Arena,
        rule: Rule,
        tag: str,
        *,
        lockstep: bool = False,
        gone: Callable[[], bool] | None = None,
    ) -> None:
        self._arena, self._rule, self._rank = arena, rule, arena.rank
        self._lockstep, self._gone = lockstep, gone
        self.parties: list[Party] = []
        steps = arena.region(f"{tag}.steps", arena.workers, torch.int64)
        pulled = arena.region(f"{tag}.pulled", arena.workers, torch.int64)
        self._steps, self._pulled = steps.numpy(), pulled.numpy()
        self._times = arena.region(f"{tag}.times", arena.workers, torch.float64).numpy()
        self._intervals = arena.region(f"{tag}.intervals", arena.workers, torch.float64).numpy()
        self._grants = arena.region(f"{tag}.grants", arena.workers, torch.int64).numpy()
        self._newest = arena.region(f"{tag}.newest", 1, torch.int64).numpy()
        self._own = 0
        self._lost: list[int] = []
        self._began = 0.0  # when the present step began: waiting here is no part of it
        self._steps[self._rank] = self._pulled[self._rank] = AWAY
        arena.barrier()

    @property
    def away(self) -> bool:
        return int(self._steps[self._rank]) == AWAY

    def enter(self) -> bool:
        """Stop resting: from now on others wait for this worker. Return whether it was resting.

        If it was, it has to take the parameters, and to call :meth:`pulled`.
        """
        if not self.away:
            return False
        with self._arena.lock(Locks.GATE):
            floor = int(self._present(self._steps).min())  # of the others: this one is away
            self._own = rejoin(self._own, floor, int(self._newest[0]))
            self._began = self._arena.pace.now()
            self._times[self._rank], self._intervals[self._rank] = self._began, 0.0
            # The grant stays: without it, this worker may be further ahead than its rule allows.
            self._pulled[self._rank] = self._own - 1
            self._steps[self._rank] = self._own
        return True

    def before_push(self) -> None:
        """In lockstep, wait, because parameters must not change while another worker has to take
        them."""
        if self._lockstep:
            self._arena.await_(self._all_pulled, self._gone)

    def pushed(self) -> None:
        now = self._arena.pace.now()
        with self._arena.lock(Locks.GATE):
            self._own += 1
            self._intervals[self._rank] = now - self._began
            self._times[self._rank] = now
            self._steps[self._rank] = self._own
            self._newest[0] = max(int(self._newest[0]), self._own)
            self._grants[self._rank] = self._rule.decide(self._rank, self._clocks(), now)
        self._arena.wake()

    def wait(self) -> None:
        """Wait until this worker may begin its next step."""
        self._arena.await_(lambda: self._rule.admits(self._rank, self._clocks()), self._gone)
        self._began = self._arena.pace.now()

    def pulled(self) -> None:
        if self.away:
            return  # the others do not wait for a resting worker
        self._pulled[self._rank] = self._own
        if self._lockstep:
            self._arena.wake()

    def rest(self) -> None:
        """Rest: the others do not wait for this worker until it enters again."""
        self._steps[self._rank] = self._pulled[self._rank] = AWAY
        self._arena.wake()

    def lose(self, rank: int) -> None:
        """Note that a worker is gone: it counts as resting from now on.

        Each worker notes this in its own memory: in shared memory, a late write of the lost worker
        could undo it.
        """
        self._lost.append(rank)

    def _present(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ``cells`` of all workers; those of lost workers count as resting."""
        if not self._lost:
            return cells
        found = cells.copy()
        found[self._lost] = AWAY
        return found

    def _clocks(self) -> Clocks:
        steps: list[int] = self._present(self._steps).tolist()
        grants: list[int] = self._grants.tolist()
        return Clocks(steps, self._times.tolist(), self._intervals.tolist(), grants, min(steps))

    def _all_pulled(self) -> bool:
        return bool(self._present(self._pulled).min() >= self._own)
