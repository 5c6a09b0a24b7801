"""Several workers on one host: strategies over an arena, buffers, claims, the switch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.core.spec import STRATEGIES, Phase, Spec
from phalanx.data.ledger import Lease, Segment
from phalanx.sync.broadcast import broadcast
from phalanx.sync.buffers import SharedBuffers
from phalanx.sync.claims import SharedClaims
from phalanx.sync.clock import Clock
from phalanx.sync.replica import Replica
from phalanx.sync.shared_state import SharedState
from phalanx.sync.strategy import Strategy, StrategyContext, Timing
from phalanx.sync.transport.arena import Arena
from phalanx.sync.transport.locks import Locks
from phalanx.train.engine import Engine, Snapshot
from phalanx.train.meeting import BATCH_DONE, FINISH, FOLLOW, SWITCH, Meeting


class SharedEngine(Engine):
    def __init__(
        self,
        arena: Arena,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        spec: Spec,
        clock: Clock,
        divide_rate: bool,
        buffers: str,
    ) -> None:
        self._arena, self.rank, self.workers = arena, arena.rank, arena.workers
        self._clock, self._divide_rate = clock, divide_rate
        super().__init__((), clock)
        self._replicas = [Replica(o, self.workers) for o in optimizers]
        self._shared = [
            SharedState(arena, replica, f"optimizer{i}") for i, replica in enumerate(self._replicas)
        ]
        broadcast(arena, _untrained(models, self._replicas))
        self._buffers = SharedBuffers(arena, models, buffers)
        self._claims = SharedClaims(arena)
        self._meeting = Meeting(arena)
        self._arrived = arena.region("arrived", self.workers, torch.float64).numpy()
        self._lockstep = [phase.traits.lockstep for phase in spec.phases]
        self._by_phase = [self._make(phase) for phase in spec.phases]
        self._now(0)
        for strategy in self._strategies:
            strategy.begin()

    def _make(self, phase: Phase) -> list[Strategy]:
        divisor = self.workers if phase.traits.divides_rate and self._divide_rate else 1
        kind = STRATEGIES.get(phase.name)
        contexts = [
            StrategyContext(
                replica, shared, self._arena, self._clock, float(divisor), self._meeting.wait
            )
            for replica, shared in zip(self._replicas, self._shared, strict=True)
        ]
        return [kind(context, **phase.options) for context in contexts]

    def _now(self, phase: int) -> None:
        self.phase, self.lockstep = phase, self._lockstep[phase]
        self._strategies = self._by_phase[phase]

    def region(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        return self._arena.region(name, count, dtype)

    def lock(self, index: int) -> AbstractContextManager[object]:
        return self._arena.lock(index)

    def meet(self, intent: int) -> None:
        self._meeting.meet(intent)

    def barrier(self) -> None:
        self._arena.barrier()

    def pause(self) -> None:
        self._arena.pause()

    def exchange(self, index: int, weight: float, clip: float | None) -> Timing:
        if self.lockstep:
            self._meeting.announce(index)
        timing = self._strategies[index].exchange(weight, clip)
        if not self.lockstep and self._buffers.any:
            self._buffers.publish()
        # Schedulers warn when the optimizer they know has not stepped itself.
        setattr(self._replicas[index].optimizer, "_opt_called", True)  # noqa: B010
        return timing

    def idle(self, weight: float) -> bool:
        stepped = False
        while True:
            for strategy in self._strategies:
                strategy.offer(weight)
            self._meeting.announce(FOLLOW)
            if (intent := self._meeting.wait()) == BATCH_DONE:
                return stepped
            if intent < 0:
                self._meeting.disagree()
            self._strategies[intent].follow()
            weight, stepped = 0.0, True

    def batch_done(self) -> None:
        self.meet(BATCH_DONE)

    def claim(self, ticket: int, segment: Segment, want: int) -> Lease | None:
        return self._claims.next(ticket, segment, want)

    def saw(self, samples: int) -> None:
        self._buffers.count(samples)

    def enter(self, phase: int) -> float | None:
        if phase <= self.phase:
            return None
        old = self._strategies
        self._arrived[self.rank] = self._clock.now()
        self.meet(SWITCH)
        for strategy in old:
            strategy.drain()
        arrived = float(self._arrived.max())
        self._now(phase)
        for before, after in zip(old, self._strategies, strict=True):
            after.import_state(before.export_state())
            after.begin()
        return arrived

    def share_buffers(self) -> None:
        if self._buffers.any:
            self._buffers.publish()
            self._arena.barrier()
            found = self._buffers.read()
            self._arena.barrier()
            self._buffers.load(*found)
            self._buffers.forget_counts()

    def take_snapshot(self) -> Snapshot | None:
        for strategy in self._strategies:
            strategy.refresh()
        return Snapshot([self._copies(i) for i in range(len(self._shared))], *self._buffers.read())

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

    def begin_epoch(self, epoch: int) -> bool:
        with self.lock(Locks.STOP):
            return super().begin_epoch(epoch)

    def request_stop(self, epoch: int) -> None:
        with self.lock(Locks.STOP):
            super().request_stop(epoch)

    def finish(self, collective: bool) -> None:
        if collective:
            self.meet(FINISH)
            for strategy in self._strategies:
                strategy.drain()
            self.share_buffers()
        else:
            self._meeting.leave()
        for i, (replica, shared) in enumerate(zip(self._replicas, self._shared, strict=True)):
            replica.bind(self._copies(i))
            if shared.elementwise:
                shared.write_optimizer()
        if collective:
            self._arena.rewind()


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
    *,
    divide_rate: bool = True,
    buffers: str = "auto",
) -> Engine:
    if arena is None:
        return Engine(optimizers, clock)
    if any(phase.name == "single" for phase in spec.phases):
        raise InputError("'single' has one worker", "Use --workers 1, or another strategy.")
    return SharedEngine(arena, models, optimizers, spec, clock, divide_rate, buffers)
