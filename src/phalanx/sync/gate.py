"""The clocks of a store's workers in shared memory, and the gate that an admission rule keeps."""

from __future__ import annotations

import torch

from phalanx.sync.admission import AWAY, Clocks, Rule, rejoin
from phalanx.sync.transport.arena import Arena
from phalanx.sync.transport.locks import Locks


class Gate:
    """A worker's clock counts its pushes. It goes on when the rule admits it."""

    def __init__(self, arena: Arena, rule: Rule, tag: str, *, lockstep: bool = False) -> None:
        self._arena, self._rule, self._rank = arena, rule, arena.rank
        self._lockstep = lockstep
        steps = arena.region(f"{tag}.steps", arena.workers, torch.int64)
        pulled = arena.region(f"{tag}.pulled", arena.workers, torch.int64)
        self._steps, self._pulled = steps.numpy(), pulled.numpy()
        self._times = arena.region(f"{tag}.times", arena.workers, torch.float64).numpy()
        self._intervals = arena.region(f"{tag}.intervals", arena.workers, torch.float64).numpy()
        self._grants = arena.region(f"{tag}.grants", arena.workers, torch.int64).numpy()
        self._own = 0
        self._began = 0.0  # when the step in hand did: waiting here is no part of it
        self._steps[self._rank] = self._pulled[self._rank] = AWAY
        arena.barrier()

    def enter(self) -> None:
        """Be one of those that others wait for, from now on."""
        if int(self._steps[self._rank]) != AWAY:
            return
        with self._arena.lock(Locks.GATE):
            self._own = rejoin(self._rank, self._steps.tolist(), self._own)
            self._began = self._arena.pace.now()
            self._times[self._rank], self._intervals[self._rank] = self._began, 0.0
            self._grants[self._rank] = 0
            self._steps[self._rank] = self._pulled[self._rank] = self._own

    def before_push(self) -> None:
        """In lockstep nobody changes parameters that another has still to take."""
        if self._lockstep:
            self._arena.await_(self._all_pulled)

    def pushed(self) -> None:
        now = self._arena.pace.now()
        with self._arena.lock(Locks.GATE):
            self._own += 1
            self._intervals[self._rank] = now - self._began
            self._times[self._rank] = now
            self._steps[self._rank] = self._own
            self._grants[self._rank] = self._rule.decide(self._rank, self._clocks(), now)
        self._arena.wake()

    def wait(self) -> None:
        """Until this worker may begin its next step."""
        self._arena.await_(self._admitted)
        self._began = self._arena.pace.now()

    def pulled(self) -> None:
        self._pulled[self._rank] = self._own
        if self._lockstep:
            self._arena.wake()

    def rest(self) -> None:
        """Nobody waits for this worker until it enters again."""
        self._steps[self._rank] = self._pulled[self._rank] = AWAY
        self._arena.wake()

    def _clocks(self) -> Clocks:
        return Clocks(
            self._steps.tolist(),
            self._times.tolist(),
            self._intervals.tolist(),
            self._grants.tolist(),
        )

    def _admitted(self) -> bool:
        return self._rule.admits(self._rank, self._clocks())

    def _all_pulled(self) -> bool:
        return bool(self._pulled.min() >= self._own)
