"""A worker of a cluster that is not there: its work takes as long as its curve says."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from phalanx.core.errors import MachineError
from phalanx.core.settings import RunSettings, VirtualCluster
from phalanx.core.spec import Phase
from phalanx.sync.arena.clock import Toll
from phalanx.sync.arena.tolls import VirtualToll
from phalanx.train.engine.emulation import SpeedEmulation

if TYPE_CHECKING:
    from phalanx.sync.arena.memory_arena import ThreadArena

STORED = ("async", "bsp", "ssp", "dssp")
"""Strategies of which each update goes through the servers, shard by shard."""

MOST_SHARDS = 8
"""Each is a visit in every update; more servers than that are several to a shard."""


class VirtualWork(SpeedEmulation):
    """Time is charged where workers step together, and slept through where order matters."""

    def __init__(
        self, arena: ThreadArena, cluster: VirtualCluster, speed: float, seed: int, *, alone: bool
    ) -> None:
        super().__init__(speed, arena, random.Random(f"{seed} {arena.rank}"))
        self.lockstep: Callable[[], bool] = lambda: True
        self._time, self._me = arena, cluster.workers[arena.rank]
        self._extra = self._me.update if alone else 0.0
        self._spread = math.sqrt(math.log1p(cluster.variation**2))
        self._fails_at, self._steps = cluster.failures.get(arena.rank), 0

    def work(self, samples: int, seconds: float) -> float:
        self._steps += 1
        if self._steps == self._fails_at:
            words = f"worker {self._time.rank} was lost at its step {self._steps}, as --fail asks"
            self._time.hub.lose(self._time.rank, words)
            raise MachineError(
                words,
                "Under async, ssp and dssp the others go on without any but worker 0; a real run "
                "of another strategy goes on from its last checkpoint.",
            )
        taken = self._me.fixed + self._me.each * samples
        if self._spread:  # of mean 1
            taken *= self.noise.lognormvariate(-(self._spread**2) / 2, self._spread)
        taken /= self.speed
        (self._time.charge if self.lockstep() else self._time.sleep)(taken + self._extra)
        return taken


def virtual_exchange(
    chosen: RunSettings, arena: ThreadArena, phases: Sequence[Phase]
) -> tuple[Toll, int | None]:
    """What exchanges take, and the number of shards: one for each server where all strategies
    have servers, since each update is one visit to each shard."""
    assert chosen.virtual is not None
    stored = all(phase.name in STORED for phase in phases)
    shards = min(len(chosen.virtual.servers), MOST_SHARDS) if stored else None
    return VirtualToll(arena, chosen.virtual, shards or arena.workers), shards
