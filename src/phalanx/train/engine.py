"""What the workers of a run share, behind one object: strategies, buffers, claims, the switch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.core.spec import STRATEGIES, Phase, Spec
from phalanx.sync.broadcast import broadcast
from phalanx.sync.buffers import SharedBuffers
from phalanx.sync.claims import SharedClaims
from phalanx.sync.clock import Clock
from phalanx.sync.replica import Replica
from phalanx.sync.shared_state import SharedState
from phalanx.sync.single import Single
from phalanx.sync.strategy import Strategy, StrategyContext, Timing
from phalanx.sync.transport.arena import Arena

NEVER = 2**62

# What a worker is about to do with the others; numbers from 0 are steps of that optimizer.
FOLLOW, BATCH_DONE, EVALUATE, EPOCH_DONE, SWITCH, FINISH = -1, -2, -3, -4, -5, -6
_NAMES = {
    FOLLOW: "has no samples left",
    BATCH_DONE: "is done with its batch",
    EVALUATE: "evaluates",
    EPOCH_DONE: "ends its epoch",
    SWITCH: "switches the strategy",
    FINISH: "has finished",
}


class Engine:
    """A worker alone: the user's optimizer, nothing shared. :class:`SharedEngine` is the rest."""

    rank = 0
    workers = 1
    lockstep = True
    phase = 0

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], clock: Clock) -> None:
        self._strategies: list[Strategy] = [Single(o, clock) for o in optimizers]
        self._stop_at = NEVER

    def exchange(self, index: int, weight: float, clip: float | None, samples: int) -> Timing:
        return self._strategies[index].exchange(weight, clip)

    def enter(self, phase: int) -> float | None:
        """Be in ``phase``; when that is a switch, returns when the last old update was applied."""
        self.phase = phase
        return None

    def barrier(self) -> None:
        pass

    def idle(self, weight: float) -> float:
        """This worker has no samples of a batch: take part in the steps of the others.

        ``weight`` is that of gradients from batches before; returns what is left of it.
        """
        return weight

    def batch_done(self) -> None:
        """The others had no samples of this batch: tell them that it is over."""

    def refresh(self) -> None:
        pass

    def request_stop(self, epoch: int) -> None:
        self._stop_at = min(self._stop_at, epoch)

    def stop_requested(self, epoch: int) -> bool:
        return self._stop_at <= epoch

    def finish(self, collective: bool) -> None:
        pass


class SharedEngine(Engine):
    """Several workers on one host, over an arena."""

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
        self.arena, self.rank, self.workers = arena, arena.rank, arena.workers
        self._clock, self._phases = clock, spec.phases
        self._replicas = [Replica(o, self.workers) for o in optimizers]
        self._shared = [
            SharedState(arena, replica, f"optimizer{i}") for i, replica in enumerate(self._replicas)
        ]
        broadcast(arena, _untrained(models, self._replicas))
        self.buffers = SharedBuffers(arena, models, buffers)
        self.claims = SharedClaims(arena)
        self._last_update = arena.region("last-update", self.workers, torch.float64).numpy()
        self._stop = arena.region("stop", 1, torch.int64).numpy()
        if self.rank == 0:
            self._stop[0] = NEVER
        self._intents = arena.region("intents", 2 * self.workers, torch.int64).view(2, -1).numpy()
        self._meetings = 0
        self._divide_rate = divide_rate
        self._by_phase = [self._make(phase) for phase in spec.phases]
        self.phase = 0
        for strategy in self._strategies_now():
            strategy.begin()

    def _make(self, phase: Phase) -> list[Strategy]:
        divisor = self.workers if phase.traits.divides_rate and self._divide_rate else 1
        kind = STRATEGIES.get(phase.name)
        return [
            kind(
                StrategyContext(
                    replica, shared, self.arena, self._clock, float(divisor), self._meet
                ),
                **phase.options,
            )
            for replica, shared in zip(self._replicas, self._shared, strict=True)
        ]

    def _strategies_now(self) -> list[Strategy]:
        return self._by_phase[self.phase]

    @property
    def lockstep(self) -> bool:  # type: ignore[override]
        return self._phases[self.phase].traits.lockstep

    def exchange(self, index: int, weight: float, clip: float | None, samples: int) -> Timing:
        if self.lockstep:
            self._announce(index)
        timing = self._strategies_now()[index].exchange(weight, clip)
        self.buffers.count(samples)
        if not self.lockstep and self.buffers.any:
            self.buffers.publish()
        # Schedulers warn when the optimizer they know has not stepped itself.
        setattr(self._replicas[index].optimizer, "_opt_called", True)  # noqa: B010
        self._last_update[self.rank] = self._clock.now()
        return timing

    def enter(self, phase: int) -> float | None:
        if phase == self.phase:
            return None
        old = self._strategies_now()
        self.meet(SWITCH)
        for strategy in old:
            strategy.drain()
        applied = float(self._last_update.max())
        self.phase = phase
        for before, after in zip(old, self._strategies_now(), strict=True):
            after.import_state(before.export_state())
            after.begin()
        return applied

    def barrier(self) -> None:
        self.arena.barrier()

    def meet(self, intent: int) -> None:
        """A barrier at which all workers have to mean the same."""
        self._announce(intent)
        self._meet()

    def _announce(self, intent: int) -> None:
        # Two rows in turn: a worker can be one meeting ahead of another, but never two.
        self._meetings += 1
        self._intents[self._meetings % 2, self.rank] = intent

    def _meet(self) -> int:
        """Returns what the others mean to do."""
        self.arena.barrier()
        row = self._intents[self._meetings % 2]
        meant = {int(intent) for intent in row} - {FOLLOW}
        if len(meant) > 1:
            self._disagree(row.tolist())
        return meant.pop()

    def _disagree(self, row: list[int]) -> None:
        other = next(rank for rank, intent in enumerate(row) if intent != row[0])
        words = [_NAMES.get(row[rank], "updates the parameters") for rank in (0, other)]
        raise InputError(
            f"the workers went different ways: worker 0 {words[0]}, worker {other} {words[1]}",
            "Every worker has to step, evaluate and end its epochs as often as the others; "
            "run.stop() ends training for all.",
        )

    def idle(self, weight: float) -> float:
        strategies = self._strategies_now()
        while True:
            for strategy in strategies:
                strategy.offer(weight)
            self._announce(FOLLOW)
            if (intent := self._meet()) == BATCH_DONE:
                return weight
            if intent < 0:
                self._disagree(self._intents[self._meetings % 2].tolist())
            strategies[intent].follow()
            weight = 0.0

    def batch_done(self) -> None:
        self.meet(BATCH_DONE)

    def refresh(self) -> None:
        for strategy in self._strategies_now():
            strategy.refresh()

    def request_stop(self, epoch: int) -> None:
        self._stop[0] = min(int(self._stop[0]), epoch)

    def stop_requested(self, epoch: int) -> bool:
        if not self.lockstep:
            return int(self._stop[0]) < NEVER
        self.meet(EPOCH_DONE)  # whoever asked in this epoch has done so now
        return int(self._stop[0]) <= epoch

    def share_buffers(self) -> None:
        """Every worker takes the average of the workers' buffers. Collective."""
        if self.buffers.any:
            self.buffers.publish()
            self.arena.barrier()
            found = self.buffers.read()
            self.arena.barrier()
            self.buffers.load(*found)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Inside, the models hold today's weights and buffers, whatever the others do."""
        self.refresh()
        saved = self.buffers.save()
        self.buffers.load(*self.buffers.read())
        for replica, shared in zip(self._replicas, self._shared, strict=True):
            flats = replica.private_flats()
            for flat, values in zip(flats, shared.parameters, strict=True):
                flat.copy_(values)
            replica.bind(flats)
        try:
            yield
        finally:
            self.buffers.restore(saved)
            for strategy in self._strategies_now():
                strategy.bind()

    def finish(self, collective: bool) -> None:
        """Leave the final parameters, buffers and optimizer state in ordinary tensors."""
        if collective:
            self.meet(FINISH)
            for strategy in self._strategies_now():
                strategy.drain()
            self.share_buffers()
        else:
            self.arena.abort()  # whoever still waits for this worker waits in vain
        for replica, shared in zip(self._replicas, self._shared, strict=True):
            flats = replica.private_flats()
            for flat, values in zip(flats, shared.parameters, strict=True):
                flat.copy_(values)
            replica.bind(flats)
            if shared.elementwise:
                shared.write_optimizer()
        if collective:
            self.arena.rewind()


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
