"""Several workers' engine: strategies over an arena, buffers, claims, directives."""

from __future__ import annotations

from collections.abc import Collection

import torch

from phalanx.core.spec import Phase, Spec
from phalanx.sync.arena.arena import LostWorker
from phalanx.sync.arena.clock import Toll
from phalanx.train.control import rendezvous as intents
from phalanx.train.control.active_phase import ActivePhase, PhaseSet
from phalanx.train.control.control import Control
from phalanx.train.control.directives import CommandPoller
from phalanx.train.engine.emulation import emulation_of
from phalanx.train.engine.engine import ArenaEngine, Script
from phalanx.train.engine.exchange import SharedExchange
from phalanx.train.engine.model_state import Captured, SharedModelState
from phalanx.train.engine.sample_leases import EngineListener, SharedSampleLeases, least_samples
from phalanx.train.engine.script_optimizers import SharedOptimizers, WrittenWeights
from phalanx.train.samples.shared_leases import SharedLeases


class SharedEngine(ArenaEngine):
    """The ``Engine`` of several workers, which share state through the arena."""

    model: SharedModelState
    leases: SharedSampleLeases
    optimizers: SharedOptimizers

    def __init__(
        self, script: Script, first: int, source: CommandPoller, listener: EngineListener
    ) -> None:
        """Make the engine; ``first`` is the phase to begin with."""
        environment, spec = script.environment, script.spec
        models, optimizers = script.models, script.optimizers
        arena, clock, chosen = environment.arena, environment.clock, environment.settings
        assert arena is not None
        virtual = environment.virtual
        self._use(arena, listener)
        self.rank, self.workers = arena.rank, arena.workers
        self.goes_ahead, self._clock = arena.hosts is not None, clock
        self._make_stop()
        claims = SharedLeases(arena, least_samples(models))
        self.directives = Control(
            arena, optimizers, claims, source, self._tell_shares, self.rest,
            balance=chosen.balance == "auto",
        )  # fmt: skip
        toll, shards = Toll(), None
        if virtual is not None and chosen.virtual is not None:
            from phalanx.train.engine.virtual_work import toll_of

            toll, shards = toll_of(chosen.virtual, virtual, spec.phases)
        everyone = self.directives.rendezvous
        self._phases = phases = PhaseSet(environment, everyone, optimizers, toll, shards)
        self.holds_optimizers = all(shared.elementwise for shared in phases.shared)
        self.model = SharedModelState(arena, models, phases, script.buffers)
        self.leases = SharedSampleLeases(arena, claims, self.directives, phases, listener)
        emulation = emulation_of(chosen, arena.rank, arena, virtual)
        self._written = WrittenWeights(
            arena, self.directives, phases, models, copies=chosen.private_weights
        )
        self.exchange = SharedExchange(
            arena, clock, emulation, self.directives, phases, self.leases, self.model.buffers,
            self._written,
        )  # fmt: skip
        self.optimizers = SharedOptimizers(
            arena, self.directives, phases, claims, self.leases, self._written
        )
        self._arrived = arena.region("arrived", self.workers, torch.float64).numpy()
        for phase in spec.phases:
            phases.of(phase, self.directives.speeds, regroup=False)
        self._begin(phases.of(spec.phases[first], (), regroup=False), spec)
        arena.watch_losses(self._survives)

    # -- phases ------------------------------------------------------------------------------

    def _begin(self, active: ActivePhase, spec: Spec, *, regroup: bool = False) -> None:
        self._phases.current = active
        self.lockstep, self.apart = active.lockstep, active.every > 0
        self.phase, self.leads = active.phase.label, active.team.index == 0
        self.parties = active.team.size if active.together else 1
        self._arena.in_step = active.lockstep  # all come here after the same barriers
        self.leases.begin_phase()
        self.directives.enter(active, spec, regroup=regroup)
        for strategy in active.strategies:
            strategy.begin()
        self.note_weights()

    def note_weights(self) -> None:
        self._written.note_all()

    def enter(self, phase: Phase, spec: Spec, *, regroup: bool = False) -> float | None:
        if not regroup and phase.label == self.phase:
            self.directives.follow(self._phases.current, spec)
            return None
        self._written.follow_all()
        self.rest()
        old = self._phases.current.strategies
        self._arrived[self.rank] = self._clock.now()
        self.meet(intents.SWITCH)
        self.directives.leave()
        self._phases.drain()
        arrived = float(self._arrived.max())
        active = self._phases.of(phase, self.directives.speeds, regroup=regroup)
        for before, after in zip(old, active.strategies, strict=True):
            after.import_state(before.export_state())
        self._begin(active, spec, regroup=regroup)
        return arrived

    # -- resting and losses ----------------------------------------------------------------------

    @property
    def resting(self) -> bool:
        return self._phases.resting

    def rest(self) -> None:
        self._phases.rest()

    def arrive(self) -> None:
        self._phases.arrive()

    @property
    def lost(self) -> Collection[int]:
        return self._arena.lost

    def _survives(self, lost: LostWorker) -> bool:
        """Go on without a lost worker, or return ``False``: in lockstep, teams, shared memory."""
        hosts, active = self._arena.hosts, self._phases.current
        beside = not self._arena.scripted if hosts is None else lost.rank in hosts.here
        if active.lockstep or active.grouped or beside:
            return False
        for strategy in active.strategies:
            strategy.lose(lost.rank)
        self._listener.worker_lost(lost)
        return True

    # -- steps -------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        self._phases.drain()

    # -- the way through the data ------------------------------------------------------------

    def end_pass(self, *, adopted: bool = False) -> None:
        if not self.lockstep and adopted:
            self._settle_pass(intents.END_PASS)
        elif self.lockstep and self._phases.current.together and self.model.buffers.any:
            self.model.share_buffers()

    def leave_pass(self, reached: int) -> None:
        if not self.lockstep:
            self._settle_pass(intents.LEFT - reached)

    def _settle_pass(self, intent: int) -> None:
        """Let free-running workers stand still, all with the same weights. Collective."""
        self.rest()
        self.meet(intent)
        self._phases.drain()
        for strategy in self._phases.current.strategies:
            strategy.refresh()
        self.model.share_buffers()
        self.note_weights()

    def begin_pass(self, *, adopted: bool) -> None:
        if not self.lockstep and adopted:
            self.rest()
            self.meet(intents.BEGIN_PASS)

    def capture(self) -> Captured:
        self._written.follow_all()
        self.rest()
        self.meet(intents.SAVE)
        self._phases.drain()
        captured = self.model.capture()
        self.barrier()  # the state may change again from here on
        return captured

    # -- a child that goes on alone ----------------------------------------------------------

    def leave_shared_memory(self) -> None:
        for replica in self._phases.replicas:
            replica.leave()

    # -- the end -----------------------------------------------------------------------------

    def finish(self, collective: bool) -> None:
        self.rest()
        self.leases.let_go()
        if collective:
            self._written.follow_all()
            self.meet(intents.FINISH)
            self.leases.settle_all()
            self._phases.drain()
            self.model.share_buffers()
        else:
            self.directives.rendezvous.leave()
        self.optimizers.give_back()
        if collective:
            self._arena.rewind()
