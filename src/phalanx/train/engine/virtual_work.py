"""Simulates a worker of a cluster that is not at hand: the time of its work is computed.

All workers live in one process, and have to fit into its memory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import psutil
from torch import nn

from phalanx.core import words
from phalanx.core.errors import InputError, MachineError
from phalanx.core.settings import VirtualCluster
from phalanx.core.spec import Phase
from phalanx.sync.arena.memory_arena import ThreadArena
from phalanx.sync.arena.simulated_network import SimulatedNetwork
from phalanx.train.engine.emulation import SpeedEmulation

STORED = ("async", "bsp", "ssp", "dssp")
"""Strategies whose updates all go through the servers, shard by shard."""

MOST_SHARDS = 8
"""The most shards: each update visits all of them. With more servers, several share a shard."""

COPIES = 5
"""The most copies of the parameters that a worker needs: weights, gradient, what it shows or
pushes, the sum, and what it pulls. Activations exist once: only one worker computes at a time."""


class VirtualWork(SpeedEmulation):
    """Charges time where workers step together, and sleeps where their order matters."""

    def __init__(
        self, arena: ThreadArena, cluster: VirtualCluster, speed: float, seed: int, *, alone: bool
    ) -> None:
        super().__init__(speed, arena, random.Random(f"{seed} {arena.rank}"))
        self._time, self._me = arena, cluster.workers[arena.rank]
        self._extra = self._me.update if alone else 0.0
        self._spread = math.sqrt(math.log1p(cluster.variation**2))
        self._fails_at, self._steps = cluster.failures.get(arena.rank), 0

    def work(self, samples: int, seconds: float, *, lockstep: bool = True) -> float:
        self._steps += 1
        if self._steps == self._fails_at:
            how = f"worker {self._time.rank} was lost at its step {self._steps}, as --fail asks"
            self._time.hub.lose(self._time.rank, how)
            raise MachineError(
                how,
                "Under async, ssp and dssp the others go on, unless worker 0 is lost; a real run "
                "of another strategy continues from its last checkpoint.",
            )
        taken = self._me.fixed + self._me.each * samples
        if self._spread:  # a factor with a mean of 1
            taken *= self.noise.lognormvariate(-(self._spread**2) / 2, self._spread)
        taken /= self.speed
        (self._time.charge if lockstep else self._time.sleep)(taken + self._extra)
        return taken


def toll_of(
    cluster: VirtualCluster, arena: ThreadArena, phases: Sequence[Phase]
) -> tuple[SimulatedNetwork, int | None]:
    """Return the network that times exchanges, and the number of shards: one for each server if all
    strategies use servers, because each update is one visit to each shard."""
    stored = all(phase.name in STORED for phase in phases)
    shards = min(len(cluster.servers), MOST_SHARDS) if stored else None
    return SimulatedNetwork(arena, cluster, shards or arena.workers), shards


def replicas_memory(models: Sequence[nn.Module], workers: int) -> str:
    """Describe the most memory that ``workers`` take; refuse them if this machine has less."""
    values = [value for m in models for value in (*m.parameters(), *m.buffers())]
    one, free = COPIES * sum(value.nbytes for value in values), available()
    if one * workers > free:
        raise InputError(
            f"{workers} workers of this model take {words.size(one * workers)} of memory, and "
            f"{words.size(free)} are free here",
            f"Simulate at most {max(1, free // max(1, one))} workers, or add --time-only.",
        )
    return words.size(one * workers)


def available() -> int:
    """Return how many bytes this machine could give now."""
    return psutil.virtual_memory().available
