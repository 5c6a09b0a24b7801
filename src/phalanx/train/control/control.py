"""Keeps the figures, shares and directives on which all workers of a training have to agree.

In lockstep all workers see the same at each rendezvous and decide the same. Where workers run
freely the first one decides for all: it writes shares into shared cells, and cuts the counter of
samples so that every worker takes the directive that it has posted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from phalanx.core.spec import Spec
from phalanx.policies.balance import ShareChange
from phalanx.sync.arena.arena import Arena
from phalanx.train.control.active_phase import ActivePhase
from phalanx.train.control.balancing import LOOK_EVERY, SpeedWatch
from phalanx.train.control.directives import (
    CommandCells,
    CommandPoller,
    Directive,
    DirectiveTaker,
    Kind,
)
from phalanx.train.control.rendezvous import (
    BUSY,
    CUT,
    SAMPLES,
    SPEED,
    STEPS,
    WHOLE,
    OptimizerDigest,
    Rendezvous,
)
from phalanx.train.samples.shared_leases import SharedLeases


class Control(DirectiveTaker):
    """Lets workers agree. ``tell`` is called, on every worker, with changes of shares; ``rest`` is
    called before free-running workers meet."""

    source: CommandPoller

    def __init__(
        self,
        arena: Arena,
        optimizers: Sequence[torch.optim.Optimizer],
        claims: SharedLeases,
        source: CommandPoller,
        tell: Callable[[ShareChange], None],
        rest: Callable[[], None],
        *,
        balance: bool,
    ) -> None:
        super().__init__(source)
        self._arena, self._claims, self._tell, self._rest = arena, claims, tell, rest
        self._first = arena.rank == 0
        everyone = range(arena.workers)
        self.rendezvous = Rendezvous(arena, arena.subset_barrier(everyone), everyone, self.attended)
        """The place where all workers meet."""
        self._digest = OptimizerDigest(optimizers)
        self.watch = SpeedWatch(arena.workers, balance=balance)
        self._cells = CommandCells(arena)
        self._taken = self._seen = 0
        """The numbers of the last directive carried out, and of the newest seen at a rendezvous."""
        self._rebalanced = False
        self.fixed = False
        """Whether the present pass keeps its shares."""
        self._lockstep = True

    @property
    def speeds(self) -> list[float]:
        """The speeds of all workers; 0: unknown, or the worker is lost."""
        lost = self._arena.lost
        written = self._cells.figures[:, SPEED]
        return [0.0 if r in lost else float(speed) for r, speed in enumerate(written)]

    @property
    def free_shares(self) -> list[float]:
        """The shares that the first worker sets for workers that do not meet."""
        found: list[float] = self._cells.shares.tolist()
        return found

    # -- rendezvous --------------------------------------------------------------------------

    def meet(self, intent: int) -> None:
        self.rendezvous.options = self._digest.digest()
        self.rendezvous.meet(intent)

    def announce(self, intent: int, active: ActivePhase, batch_end: int) -> None:
        """Announce ``intent`` to the workers that step together. In lockstep this also compares
        their optimizers' settings and ``batch_end``, where their batch ends in the pass."""
        if active.lockstep:
            # The settings' digest is a whole number of 32 bits: a fraction of 16 bits fits in.
            batch = batch_end * 40_503 % 65_536 / 65_536
            active.rendezvous.options = self._digest.digest() + batch
        active.rendezvous.announce(intent)

    # -- phases ------------------------------------------------------------------------------

    def enter(self, active: ActivePhase, spec: Spec, *, regroup: bool) -> None:
        self._lockstep = active.lockstep
        by_speed = active.phase.options.get("by") == "speed" and not regroup
        self.watch.enter(active.phase, spec, by_speed, active.every)
        self._share_out()

    def follow(self, active: ActivePhase, spec: Spec) -> None:
        """Continue the phase under another spec, which may ask for another policy."""
        self.watch.follow(active.phase, spec)
        self._share_out()

    def leave(self) -> None:
        """End a phase, while all workers stand still."""
        if not self._lockstep:  # only the first worker has watched the speeds so far
            self.watch.shares = self.free_shares

    # -- speeds ------------------------------------------------------------------------------

    def measured(self, samples: int, seconds: float) -> None:
        """Add ``seconds`` of computing ``samples`` to this worker's figures."""
        if samples > 0 and seconds > 0.0:
            self.watch.rates.append(samples / seconds)
        figures = self.rendezvous.figures
        if samples:  # a step without samples is a second optimizer's, part of the same work
            figures[STEPS] += 1
        figures[SAMPLES] += samples
        figures[BUSY] += seconds
        figures[WHOLE] += seconds
        looks = figures[STEPS] % LOOK_EVERY == 0
        if looks:
            figures[SPEED] = self.watch.speed
        if looks or not self._lockstep:
            self._cells.figures[self._arena.rank] = figures

    def use_shares(self) -> list[float]:
        """Return the shares of the segment that begins in lockstep."""
        self._tell_decided()
        self._rebalanced = False
        return self.watch.shares

    def _tell_decided(self) -> None:
        for change in self.watch.decided:
            self._tell(change)
        self.watch.decided.clear()

    def _share_out(self) -> None:
        if self._first:
            self._cells.shares[:] = self.watch.shares

    # -- directives --------------------------------------------------------------------------

    def attended(self, figures: Any, directive: int) -> None:
        """Look at all figures at a rendezvous; as workers see the same, they decide the same."""
        self._seen = directive
        if not self._lockstep:
            return
        if self.watch.balances and not self.fixed and figures[0, WHOLE] >= self.watch.next_tick:
            self._rebalanced |= self.watch.new_shares(figures)
        if self._first and (self.watch.policy or self.watch.regroups):
            self._post(self.watch.verdict(figures[:, SPEED], self._arena.pace.now()))

    def look(self) -> None:
        """Look for commands; the first worker posts them, and decides for free-running workers."""
        if self._first and self._cells.cells[0] > self._taken:
            if not self._lockstep:
                self._claims.cut()  # cut again, because there was nothing left to cut the last time
            return
        if (found := self.source.look()) is not None:
            if found.kind is Kind.STOP:
                self._cells.stopping[self._arena.rank] = 1
            elif self._first:
                self._post(found)
        if not self._first:
            return
        if 1 in self._cells.stopping:
            self._post(Directive(Kind.STOP))
            return
        if not self._lockstep:
            figures, watch = self._cells.figures, self.watch
            looks = watch.balances and figures[0, WHOLE] >= watch.next_tick
            if looks and watch.new_shares(figures, self._arena.lost):
                self._share_out()
                self._tell_decided()
            if watch.policy or watch.regroups:
                self._post(watch.verdict(self.speeds, self._arena.pace.now()))

    def _post(self, directive: Directive | None) -> None:
        if directive is None or self._cells.cells[0] > self._taken:
            return
        self._cells.post(directive)
        self.rendezvous.directive = self._cells.cells[0]
        if not self._lockstep:
            self._claims.cut()

    @property
    def cut(self) -> bool:
        return self._lockstep and (self._rebalanced or self._seen > self._taken)

    def after_segment(self, ticket: int, position: int) -> tuple[int, Directive | None]:
        if self._lockstep:
            self.use_shares()
            if self._seen <= self._taken:
                return position, None
        else:
            if not self._claims.is_cut(ticket):
                return position, None
            self._rest()
            self.rendezvous.meet(CUT)
            position = self._claims.position
        directive, self._taken = self._cells.read(), self._cells.cells[0]
        self._arena.barrier()  # the next one is posted only when all have read this one
        return position, directive
