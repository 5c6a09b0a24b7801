"""Decides which samples this worker reads: parts of batches in lockstep, else what it claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from phalanx.policies.balance import ShareChange
from phalanx.policies.sample_assignment import Applied, Lease, Segment, SettledSamples, lockstep
from phalanx.sync.arena.arena import Arena, LostWorker
from phalanx.train.control.active_phase import PhaseSet
from phalanx.train.control.control import Control
from phalanx.train.samples.shared_leases import SharedLeases

if TYPE_CHECKING:
    from phalanx.train.samples.pass_lanes import PassLanes


class EngineListener:
    """Receives events of the workers that train together; this base class ignores them."""

    def shares_changed(self, change: ShareChange) -> None:
        """Note that new shares of a batch were kept or refused; called on the first worker."""

    def worker_lost(self, lost: LostWorker) -> None:
        """Note that a worker was lost, and the others go on."""

    def samples_settled(self, settled: SettledSamples) -> None:
        """Note what became of a lost worker's samples; called on one worker."""


class SampleLeases:
    """Gives a single worker its samples to train on."""

    def of(
        self, ticket: int, segment: Segment, batch: int, *, fixed: bool, counted: bool
    ) -> Iterator[Lease]:
        """Yield what this worker reads of ``segment``: its shares, or what it can claim. ``fixed``:
        always the same columns of each global batch. ``counted``: an equal part of each batch, also
        where workers run freely."""
        return lockstep(segment, batch, 0, [1.0])

    def use_lanes(self, lanes: PassLanes | None) -> None:
        """Set the lanes of the next pass; ``None`` if its data do not come in blocks."""

    def end_lanes(self, ticket: int) -> None:
        """Publish, at the end of a segment, which rows were claimed."""

    def complete(self, ticket: int) -> bool:
        """Return whether a segment without further leases is over: no worker still holds samples of
        it. If not, a lost worker left samples: ask for leases again."""
        return True

    def let_go(self) -> None:
        """Give up the present segment, which the script has left before its end."""

    def waits(self, rank: int) -> bool:
        """Whether worker ``rank`` waits at a segment's end until no other holds samples of it."""
        return False


class SharedSampleLeases(SampleLeases):
    """Shares the samples out among several workers."""

    def __init__(
        self,
        arena: Arena,
        claims: SharedLeases,
        control: Control,
        phases: PhaseSet,
        listener: EngineListener,
    ) -> None:
        self._arena, self._claims, self._control = arena, claims, control
        self._phases, self._listener = phases, listener
        self.had = self.stepped = 0
        """Samples that this worker was given in this training, and those it stepped with."""
        self.batch_end = 0
        """The end of the current batch, in samples of the pass."""
        self._segment = Segment(0, 0, 0)

    def begin_phase(self) -> None:
        if self._phases.current.grouped:
            self._claims.begin_teams()
        if self._claims.given is not None:
            self._claims.given.count(self.had)

    def of(
        self, ticket: int, segment: Segment, batch: int, *, fixed: bool, counted: bool
    ) -> Iterator[Lease]:
        self._control.fixed, self._segment = fixed, segment
        active, workers = self._phases.current, self._arena.workers
        if not active.lockstep:
            claimed = self._counted if counted else self._claimed
            return claimed(ticket, segment, batch)
        shares = [1.0] * workers if fixed else self._control.use_shares()
        lanes = self._claims.lanes
        return lockstep(
            segment, batch, self._arena.rank, shares, active.every, least=self._claims.least,
            fixed=fixed, left=lanes.left if lanes is not None and lanes.pinned else None,
        )  # fmt: skip

    def use_lanes(self, lanes: PassLanes | None) -> None:
        self._claims.lanes = lanes

    def end_lanes(self, ticket: int) -> None:
        if not self._phases.current.lockstep:
            self._claims.end_lanes(ticket)

    def _claimed(self, ticket: int, segment: Segment, batch: int) -> Iterator[Lease]:
        active, arena, claims = self._phases.current, self._arena, self._claims
        members = list(active.team.members) if active.grouped else [arena.rank]
        teams = active.team.teams if active.grouped else arena.workers
        while True:
            if self._phases.resting:
                self._phases.arrive()
            known = self._control.free_shares
            shares = [known[m] for m in members]
            want = max(len(members), round(batch * sum(shares)))
            if len(members) > 1:
                gone = self._control.rendezvous.someone_left
                one = claims.next_of_team(ticket, segment, want, members, shares, gone)
                leases = [one] if one else []
            elif arena.hosts is None:
                one = claims.next(ticket, segment, want)
                leases = [one] if one else []
            else:
                leases = claims.next_few(ticket, segment, want)
            if not leases:
                return
            for lease in leases:
                if self._phases.resting:
                    self._phases.arrive()
                yield _emphasised(lease, lease.whole, batch, teams)

    def _counted(self, ticket: int, segment: Segment, batch: int) -> Iterator[Lease]:
        """Yield a part of each batch, so that all workers have equally many batches."""
        active, arena, least = self._phases.current, self._arena, self._claims.least
        members = list(active.team.members) if active.grouped else [arena.rank]
        teams = active.team.teams if active.grouped else arena.workers
        want = round(batch * len(members) / arena.workers)
        reached = start = segment.start
        for part in lockstep(segment, batch, arena.rank, [1.0] * arena.workers, least=least):
            if start >= reached:
                reached = self._claims.reach(ticket, segment, start, batch)
                if start >= reached:
                    return
            start = part.batch_end
            self._phases.arrive()
            whole = sum(part.ends[member + 1] - part.ends[member] for member in members)
            if whole:  # a last batch may be too small for a part for each worker
                share, full = part.samples / want, whole / want
                mine = replace(part, share=share, whole=whole, full=full)
                yield _emphasised(mine, want, batch, teams)

    def complete(self, ticket: int) -> bool:
        given, active = self._claims.given, self._phases.current
        if not active.lockstep and self._claims.others_have_more(ticket, self._segment):
            self._phases.rest()  # so that no other waits for this worker's steps meanwhile
            self._claims.wait_for_others(ticket, self._segment)
        if given is None or active.lockstep or active.grouped:
            return True
        self._phases.rest()
        given.end(self.had, self.stepped, ticket)
        for settled in given.wait(ticket, self._fence):
            self._listener.samples_settled(settled)
        return given.over(ticket)

    def settle_all(self) -> None:
        """Report, at the end of training, what became of the samples of lost workers."""
        if self._claims.given is not None:
            for settled in self._claims.given.settle_all(self._fence):
                self._listener.samples_settled(settled)

    def _fence(self, rank: int) -> Applied | None:
        """Return a lost worker's steps that arrived, for the optimizer that has come farthest."""
        found = [strategy.fence(rank) for strategy in self._phases.current.strategies]
        return max((one for one in found if one), key=lambda one: one.whole, default=None)

    def let_go(self) -> None:
        if self._claims.given is not None:
            self._claims.given.end(self.had, self.stepped)

    def waits(self, rank: int) -> bool:
        return self._claims.given is not None and self._claims.given.waits(rank)


def _emphasised(lease: Lease, size: int, batch: int, teams: int) -> Lease:
    """Weigh a chunk by its samples, if its ``size`` is not an equal share of ``batch``. Where
    claimed chunks end depends on speeds, on lost workers, and on where a run was resumed: if the
    mean of a short one made a whole step, its samples would count several times."""
    if size == round(batch / teams):  # it may not divide evenly
        return lease
    return replace(lease, emphasis=lease.whole * teams / batch)


def least_samples(models: Sequence[nn.Module]) -> int:
    """Return the least size of a part: 2 with batch normalisation, for its variance; else 1."""
    kind = nn.modules.batchnorm._BatchNorm
    normalise = any(isinstance(module, kind) for model in models for module in model.modules())
    return 2 if normalise else 1
