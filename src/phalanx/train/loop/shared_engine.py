"""Several workers: strategies over an arena, buffers, claims, commands, the switch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.core.spec import Phase, Spec
from phalanx.data.ledger import Applied, Lease, Segment, lockstep
from phalanx.sync.arena.arena import Arena
from phalanx.sync.arena.clock import Clock
from phalanx.sync.arena.locks import Locks
from phalanx.sync.arena.remote.coordinator_messages import Lost
from phalanx.sync.arena.remote.remote_arena import Mirror
from phalanx.sync.connect.channel import Channel
from phalanx.sync.policy.balance import Change
from phalanx.sync.policy.leases import SharedClaims
from phalanx.sync.policy.samples_in_hand import Settled
from phalanx.sync.reduce.encoding import Wire
from phalanx.sync.state.broadcast import broadcast
from phalanx.sync.state.gathering import Gathering
from phalanx.sync.state.model_buffers import SharedBuffers
from phalanx.sync.state.optimizer_state import State
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.shared_state import SharedState
from phalanx.sync.strategies.strategy import Strategy, Timing
from phalanx.train.checkpoint.whole_state import Captured, WholeState
from phalanx.train.control.command_cells import Command
from phalanx.train.control.control import Control
from phalanx.train.control.rendezvous import (
    AGREED,
    FINISH,
    LOAD,
    READ,
    ROUND,
    SAVE,
    SWITCH,
    UNFREEZE,
    OptimizerDigest,
    Rendezvous,
)
from phalanx.train.loop.active_phase import ActivePhase, PhaseFactory
from phalanx.train.loop.emulation import emulation_of
from phalanx.train.loop.engine import Engine, Snapshot


class SharedEngine(Engine):
    def __init__(
        self,
        arena: Arena,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        spec: Spec,
        clock: Clock,
        chosen: RunSettings,
        buffers: str,
        machine: str,
        first: int,
    ) -> None:
        self._arena, self.rank, self.workers = arena, arena.rank, arena.workers
        self.background, self.goes_ahead = not arena.scripted, arena.hosts is not None
        emulation = emulation_of(chosen, arena.rank, arena)
        super().__init__(models, optimizers, clock, emulation)
        self._options = OptimizerDigest(self._users)
        self._made = 0
        self._lay_out()
        broadcast(arena, _untrained(models, self._replicas))
        self._buffers = SharedBuffers(arena, models, buffers)
        self._claims = SharedClaims(arena)
        self._claims.least = 2 if _normalise_batches(models) else 1
        self._meeting = Rendezvous(arena, arena.circle(range(self.workers)), range(self.workers))
        self._control = Control(
            arena, self._meeting, self._claims, self._tell_shares, balance=chosen.balance == "auto"
        )
        self._had = self._stepped = 0
        """Samples that this worker has had in this training, and those it has stepped with."""
        self._arrived = arena.region("arrived", self.workers, torch.float64).numpy()
        wire = Wire(None, chosen.rate, arena.sleep, chosen.seed * 64 + self.rank)
        self._makings = PhaseFactory(
            arena, clock, self._replicas, self._shared, self._meeting,
            chosen.divide_rate, wire, machine,
        )  # fmt: skip
        self._gathering: Gathering | None = None
        self._stages: dict[tuple[str, tuple[float, ...]], ActivePhase] = {}
        self._staged = 0
        for phase in spec.phases:
            self._stage_of(phase, regroup=False)
        self._begin(self._stage_of(spec.phases[first], regroup=False), spec)
        if isinstance(arena, Mirror):
            arena.survives = self._survives

    def _lay_out(self) -> None:
        """Memory for what the optimizers train now. Collective."""
        self._made += 1
        self._replicas = [Replica(o, self._arena.host.workers) for o in self._users]
        self._shared = [
            SharedState(self._arena, replica, f"optimizer{i}.{self._made}")
            for i, replica in enumerate(self._replicas)
        ]

    # -- stages ------------------------------------------------------------------------------

    def _stage_of(self, phase: Phase, *, regroup: bool) -> ActivePhase:
        """The stage of ``phase``: made once, and used again when training comes back to it."""
        by_speed = phase.options.get("by") == "speed"
        speeds = tuple(self._control.speeds) if by_speed else ()
        key: tuple[str, tuple[float, ...]] = (phase.label, speeds if regroup else ())
        if key not in self._stages:
            self._stages[key] = self._makings.stage(phase, self._staged, speeds)
            self._staged += 1
        return self._stages[key]

    def _begin(self, stage: ActivePhase, spec: Spec, *, regroup: bool = False) -> None:
        self._stage, self.lockstep = stage, stage.lockstep
        if isinstance(self._arena, Mirror):
            self._arena.in_step = stage.lockstep  # all come here after the same barriers
        if stage.phase.traits.grouped:
            self._claims.begin_teams()
        if self._claims.given is not None:
            self._claims.given.count(self._had)
        self._control.enter(stage, spec, regroup=regroup)
        for strategy in stage.strategies:
            strategy.begin()

    @property
    def _strategies(self) -> list[Strategy]:
        return self._stage.strategies

    @property
    def phase(self) -> str:
        return self._stage.phase.label

    def enter(self, phase: Phase, spec: Spec, *, regroup: bool = False) -> float | None:
        if not regroup and phase.label == self._stage.phase.label:
            self._control.follow(self._stage, spec)
            return None
        self.rest()
        old = self._strategies
        self._arrived[self.rank] = self._clock.now()
        self.meet(SWITCH)
        self._control.leave()
        for strategy in old:
            strategy.drain()
        arrived = float(self._arrived.max())
        stage = self._stage_of(phase, regroup=regroup)
        for before, after in zip(old, stage.strategies, strict=True):
            after.import_state(before.export_state())
        self._begin(stage, spec, regroup=regroup)
        return arrived

    # -- memory and turns --------------------------------------------------------------------

    def region(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        return self._arena.region(name, count, dtype)

    def lock(self, index: int) -> AbstractContextManager[object]:
        return self._arena.lock(index)

    def meet(self, intent: int) -> None:
        self._meeting.options = self._options.digest()
        self._meeting.meet(intent)

    def barrier(self) -> None:
        self._arena.barrier()

    def gather(self, mine: bytes | None) -> list[bytes]:
        if self._gathering is None:
            self._gathering = Gathering(self._arena)
        return self._gathering.gather(mine)

    def pause(self) -> None:
        self._arena.pause()

    def rest(self) -> None:
        self.resting = True
        if not self.lockstep:
            for strategy in self._strategies:
                strategy.rest()

    def arrive(self) -> None:
        self.resting = False
        if not self.lockstep:
            for strategy in self._strategies:
                strategy.arrive()

    @property
    def lost(self) -> Collection[int]:
        return self._arena.lost

    def _survives(self, lost: Lost) -> bool:
        """Where nobody waits for anybody the others go on, unless they share its memory."""
        hosts, traits = self._arena.hosts, self._stage.phase.traits
        if traits.lockstep or traits.grouped or hosts is None or lost.rank in hosts.here:
            return False
        for strategy in self._strategies:
            strategy.lose(lost.rank)
        if self.on_lost is not None:
            self.on_lost(lost)
        return True

    # -- steps -------------------------------------------------------------------------------

    def worked(self, samples: int, seconds: float) -> None:
        assert self._emulation is not None
        self._control.measured(samples, self._emulation.work(samples, seconds))

    @property
    def leads(self) -> bool:
        return self._stage.team.index == 0

    @property
    def parties(self) -> int:
        return self._stage.team.size if self._stage.together else 1

    def begin_batch(self, scales: Sequence[float]) -> None:
        for replica, scale in zip(self._replicas, scales, strict=True):
            replica.scale.value = scale

    def exchange(
        self, index: int, scale: float, weight: float, clip: float | None, *, agreed: bool = False
    ) -> Timing:
        self._control.look(self.watcher, told_to_stop=self.told_to_stop())
        strategy, stage = self._strategies[index], self._stage
        self._replicas[index].scale.value = scale
        began = self._arena.pace.now()
        if not stage.together:
            timing = strategy.exchange(weight, clip)
        elif agreed and clip is None and strategy.steps_agreed:
            timing = self._step_agreed(index)
        else:
            self._announce(index)
            timing = strategy.exchange(weight, clip)
        self._control.exchanged(self._arena.pace.now() - began)
        self._stepped = self._had
        if not self.lockstep and self._buffers.any:
            self._buffers.publish()
        # Schedulers warn when the optimizer they know has not stepped itself.
        setattr(self._replicas[index].optimizer, "_opt_called", True)  # noqa: B010
        self.on_step(index, timing)
        return timing

    def _announce(self, intent: int) -> None:
        """To those who step together; their optimizers have to be set alike."""
        if self.lockstep:
            self._stage.meeting.options = self._options.digest()
        self._stage.meeting.announce(intent)

    def _step_agreed(self, index: int) -> Timing:
        self._replicas[index].scale.value = 1.0
        asked = self._clock.now()
        self._announce(AGREED + index)
        self._stage.meeting.wait()
        met = self._clock.now()
        timing = self._strategies[index].step_agreed()
        timing.wait += met - asked
        return timing

    def share_gradients(self, index: int, scale: float, weight: float) -> None:
        self._replicas[index].scale.value = scale
        self._announce(READ - index)
        self._stage.meeting.wait()
        self._strategies[index].share_gradients(weight)

    def end_round(self) -> Timing | None:
        total = Timing()
        for strategy in self._strategies:
            self._meeting.announce(ROUND)
            began = self._arena.pace.now()
            timing = strategy.agree()
            self._control.exchanged(self._arena.pace.now() - began)
            total.send += timing.send
            total.wait += timing.wait
            total.update += timing.update
            total.settle += timing.settle
            total.bytes_sent += timing.bytes_sent
            self.on_step(-1, timing)
        return total

    def received(self, lease: Lease) -> None:
        self._buffers.count(lease.samples)
        self._had = lease.total or self._had + lease.samples
        if not self.lockstep:
            for strategy in self._strategies:
                strategy.emphasise(lease.emphasis)
                strategy.covers(self._had)

    def settle(self) -> None:
        if self.apart:
            for strategy in self._strategies:
                strategy.drain()

    def _tell_shares(self, change: Change) -> None:
        if self.rank == 0 and self.on_shares is not None:
            self.on_shares(change)

    # -- the script's optimizers -------------------------------------------------------------

    @property
    def outgrown(self) -> bool:
        return any(map(Replica.outgrown, self._replicas))

    def follow_parameters(self) -> bool:
        if not self.outgrown:
            return False
        resting, given = self.resting, self._claims.given
        self.rest()
        if given is not None:
            given.meet(self._stepped)
        self.meet(UNFREEZE)
        if given is not None:
            given.met()
        for strategy in self._strategies:
            strategy.drain()
        self._give_back()
        self.barrier()  # nothing of the old memory is read any more
        key = next(k for k, stage in self._stages.items() if stage is self._stage)
        scales = [replica.scale.value for replica in self._replicas]
        self._lay_out()
        self.begin_batch(scales)
        self._makings = replace(self._makings, replicas=self._replicas, shared=self._shared)
        self._stages = {}
        self._stage = self._makings.stage(self._stage.phase, self._staged, key[1])
        self._stages[key] = self._stage
        self._staged += 1
        for strategy in self._strategies:
            strategy.begin()
        if not resting:
            self.arrive()
        return True

    def _give_back(self) -> None:
        """Parameters and the optimizers' state become ordinary tensors of this worker."""
        for i, (replica, shared) in enumerate(zip(self._replicas, self._shared, strict=True)):
            replica.stop_listening()
            replica.bind(self._copies(i))
            if shared.elementwise:
                shared.write_optimizer()
            replica.staging.unpin()

    def write_optimizer(self, index: int) -> None:
        shared = self._shared[index]
        if not shared.elementwise and self._arena.host.rank and not self.apart:
            kind = type(self._users[index]).__name__
            raise InputError(
                f"the state of {kind} is with the first worker of each machine",
                "Ask for optimizer.state_dict() there: if run.is_first: …",
            )
        self._strategies[index].write_optimizer()

    def read_optimizer(self, index: int) -> None:
        if not self.lockstep or self.apart:
            raise InputError(
                f"an optimizer's state cannot be loaded while training under {self.phase}",
                "Load it before phalanx.join.",
            )
        self.meet(LOAD)
        if self._arena.host.rank == 0 and self._shared[index].elementwise:
            self._shared[index].read_optimizer()
        self.barrier()

    def end_pass(self) -> None:
        if self.lockstep and self._stage.together and self._buffers.any:
            self.share_buffers()

    # -- the way through the data ------------------------------------------------------------

    def leases(
        self, ticket: int, segment: Segment, batch: int, *, fixed: bool = False
    ) -> Iterator[Lease]:
        self._control.fixed = fixed
        if self.lockstep:
            shares = [1.0] * self.workers if fixed else self._control.use_shares()
            every, least = self._stage.every, self._claims.least
            return lockstep(segment, batch, self.rank, shares, every, least=least, fixed=fixed)
        return self._claimed(ticket, segment, batch)

    def _claimed(self, ticket: int, segment: Segment, batch: int) -> Iterator[Lease]:
        team, claims = self._stage.team, self._claims
        members = list(team.members) if self._stage.phase.traits.grouped else [self.rank]
        teams = team.teams if self._stage.phase.traits.grouped else self.workers
        while True:
            self.arrive()
            known = self._control.free_shares
            shares = [known[m] for m in members]
            want = max(len(members), round(batch * sum(shares)))
            if len(members) > 1:
                gone = self._meeting.someone_left
                one = claims.next_of_team(ticket, segment, want, members, shares, gone)
                leases = [one] if one else []
            elif self._arena.hosts is None:
                one = claims.next(ticket, segment, want)
                leases = [one] if one else []
            else:
                leases = claims.next_few(ticket, segment, want)
            if not leases:
                return
            for lease in leases:
                self.arrive()
                equal = lease.wanted == round(batch / teams)  # which may not divide evenly
                yield lease if equal else replace(lease, emphasis=lease.wanted * teams / batch)

    def complete(self, ticket: int) -> bool:
        given = self._claims.given
        if given is None or self.lockstep or self._stage.phase.traits.grouped:
            return True
        self.rest()
        given.end(self._had, self._stepped, ticket)
        for settled in given.wait(ticket, self._fence):
            self._tell_settled(settled)
        return given.over(ticket)

    def _tell_settled(self, settled: Settled) -> None:
        if self.on_settled is not None:
            self.on_settled(settled)

    def _fence(self, rank: int) -> Applied | None:
        """Of several optimizers, the one that has come farthest: not all step with each batch."""
        found = [strategy.fence(rank) for strategy in self._strategies]
        return max((one for one in found if one), key=lambda one: one.whole, default=None)

    def let_go(self) -> None:
        if self._claims.given is not None:
            self._claims.given.end(self._had, self._stepped)

    def waits(self, rank: int) -> bool:
        return self._claims.given is not None and self._claims.given.waits(rank)

    @property
    def cut(self) -> bool:
        return self._control.cut

    @property
    def apart(self) -> bool:
        return self._stage.every > 0

    def after_stretch(self, ticket: int, lockstep_position: int) -> tuple[int, Command | None]:
        return self._control.after_stretch(ticket, lockstep_position, self.rest)

    # -- reading the model -------------------------------------------------------------------

    def share_buffers(self) -> None:
        if self._buffers.any:
            self._buffers.publish()
            self._arena.barrier()
            found = self._buffers.read()
            self._arena.barrier()
            self._buffers.load(*found)
            self._buffers.forget_counts()

    def take_snapshot(self) -> Snapshot | None:
        flats = [replica.private_flats() for replica in self._replicas]
        for strategy, own in zip(self._strategies, flats, strict=True):
            strategy.snapshot(own)
        return Snapshot(flats, *self._buffers.read())

    def _copies(self, index: int) -> list[Tensor]:
        flats = self._replicas[index].private_flats()
        for flat, values in zip(flats, self._shared[index].parameters, strict=True):
            flat.copy_(values)
        return flats

    @contextmanager
    def showing(self, snapshot: Snapshot | None) -> Iterator[None]:
        if snapshot is None:
            yield
            return
        saved = self._buffers.save()
        self._buffers.load(snapshot.averages, snapshot.firsts)
        for replica, flats in zip(self._replicas, snapshot.flats, strict=True):
            replica.bind(flats)
        try:
            yield
        finally:
            self._buffers.restore(saved)
            for strategy in self._strategies:
                strategy.bind()

    # -- checkpoints -------------------------------------------------------------------------

    @property
    def replicas(self) -> list[Replica]:
        return self._replicas

    def capture(self) -> Captured:
        self.rest()
        self.meet(SAVE)
        for strategy in self._strategies:
            strategy.drain()
        captured = self._whole().capture(self._strategies)
        self.barrier()  # from here on the state may change again
        return captured

    def restore(self, shared: State, private: State | None) -> None:
        self._whole().restore(self._strategies, shared, private)

    def _whole(self) -> WholeState:
        return WholeState(self._arena, self._models, self._shared, self._buffers)

    # -- the end -----------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> bool:
        with self.lock(Locks.STOP):
            return super().begin_epoch(epoch)

    def request_stop(self, epoch: int) -> None:
        with self.lock(Locks.STOP):
            super().request_stop(epoch)

    def leave(self) -> None:
        self.rest()
        self._arena.rewind()

    def channels_with_first(self) -> dict[int, Channel]:
        hosts = self._arena.hosts
        return {} if hosts is None else hosts.channels_with_first()

    @property
    def near_first(self) -> bool:
        hosts = self._arena.hosts
        return hosts is None or 0 in hosts.here

    def finish(self, collective: bool) -> None:
        self.rest()
        self.let_go()
        if collective:
            self.meet(FINISH)
            for settled in self._claims.given.settle_all(self._fence) if self._claims.given else ():
                self._tell_settled(settled)
            for strategy in self._strategies:
                strategy.drain()
            self.share_buffers()
        else:
            self._meeting.leave()
        self._give_back()
        if collective:
            self._arena.rewind()


def _normalise_batches(models: Sequence[nn.Module]) -> bool:
    """Whether a single sample cannot be trained on, for want of a variance."""
    kind = nn.modules.batchnorm._BatchNorm
    return any(isinstance(module, kind) for model in models for module in model.modules())


def _untrained(models: Sequence[nn.Module], replicas: Sequence[Replica]) -> list[Tensor]:
    """Parameters outside every optimizer, or frozen: no strategy moves them."""
    trained = {id(p) for replica in replicas for space in replica.parameters for p in space}
    return [p for model in models for p in model.parameters() if id(p) not in trained]


def make_engine(
    arena: Arena | None,
    models: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    spec: Spec,
    clock: Clock,
    chosen: RunSettings,
    *,
    buffers: str = "auto",
    machine: str = "here",
    first: int = 0,
) -> Engine:
    if arena is None:
        return Engine(models, optimizers, clock, emulation_of(chosen, 0, None))
    if any(phase.name == "single" for phase in spec.phases):
        raise InputError("'single' has one worker", "Use --workers 1, or another strategy.")
    return SharedEngine(arena, models, optimizers, spec, clock, chosen, buffers, machine, first)
