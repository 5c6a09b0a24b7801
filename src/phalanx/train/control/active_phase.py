"""A phase of the strategy in use: which workers step together, and a strategy per optimizer."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from phalanx.core.spec import STRATEGIES, Phase
from phalanx.sync.arena.clock import Toll
from phalanx.sync.arena.team import Team, everyone, team_of
from phalanx.sync.codec.encoding import Encoding
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.shared_state import SharedState
from phalanx.sync.strategy import Gates, Strategy, StrategyContext
from phalanx.train.control.rendezvous import Rendezvous
from phalanx.train.start.environment import Environment


@dataclass(frozen=True)
class ActivePhase:
    phase: Phase
    team: Team
    rendezvous: Rendezvous
    """The place where the team's workers meet."""
    strategies: list[Strategy]

    @cached_property
    def lockstep(self) -> bool:
        return self.phase.traits.lockstep

    @cached_property
    def grouped(self) -> bool:
        return self.phase.traits.grouped

    @cached_property
    def together(self) -> bool:
        """Whether every step begins with a rendezvous of the team."""
        return (
            self.team.size > 1 and not self.phase.traits.local and (self.lockstep or self.grouped)
        )

    @cached_property
    def every(self) -> int:
        """Batches that each worker trains alone between rounds; 0 if no worker does."""
        return self.strategies[0].every if self.phase.traits.local else 0


class PhaseSet:
    """The present phase, and those made before, to which training may return. All use the same
    memory for the parameters and the optimizers' state."""

    current: ActivePhase

    def __init__(
        self,
        environment: Environment,
        rendezvous: Rendezvous,
        optimizers: Sequence[torch.optim.Optimizer],
        toll: Toll,
        shards: int | None,
    ) -> None:
        """``rendezvous`` is that of all workers. ``shards`` is how many parts the parameters are
        cut into; ``None``: one for each worker of this host."""
        assert environment.arena is not None
        self._environment, self._arena = environment, environment.arena
        self._rendezvous, self._optimizers, self._toll = rendezvous, optimizers, toll
        self._shards = shards or self._arena.host.workers
        self._laid_out = self._made = 0
        self._known: dict[tuple[str, tuple[float, ...]], ActivePhase] = {}
        self.resting = True
        """Whether this worker takes no part for a while, so that no other waits for it."""
        self.lay_out()

    def lay_out(self) -> None:
        """Lay out memory for what the optimizers train now. Collective."""
        self._laid_out += 1
        # With private weights each worker trains a copy of them.
        private = self._environment.settings.private_weights
        self.replicas = [Replica(o, self._shards, private=private) for o in self._optimizers]
        self.shared = [
            SharedState(self._arena, replica, f"optimizer{i}.{self._laid_out}")
            for i, replica in enumerate(self.replicas)
        ]

    def of(self, phase: Phase, speeds: Sequence[float], *, regroup: bool) -> ActivePhase:
        """Return the ``ActivePhase`` of ``phase``. Collective at its first use, which makes it."""
        by_speed = tuple(speeds) if phase.options.get("by") == "speed" else ()
        key = (phase.label, by_speed if regroup else ())
        if key not in self._known:
            self._known[key] = self._make(phase, by_speed)
        return self._known[key]

    def lay_out_again(self) -> None:
        """Make the present phase anew, as the optimizers train other parameters. Collective."""
        key = next(k for k, active in self._known.items() if active is self.current)
        scales = [replica.scale.value for replica in self.replicas]
        self.lay_out()
        for replica, scale in zip(self.replicas, scales, strict=True):
            replica.scale.value = scale
        self.current = self._make(self.current.phase, key[1])
        self._known = {key: self.current}
        for strategy in self.current.strategies:
            strategy.begin()

    def rest(self) -> None:
        self.resting = True
        if not self.current.lockstep:
            for strategy in self.current.strategies:
                strategy.rest()

    def arrive(self) -> None:
        self.resting = False
        if not self.current.lockstep:
            for strategy in self.current.strategies:
                strategy.arrive()

    def drain(self) -> None:
        """Apply all updates that are under way."""
        for strategy in self.current.strategies:
            strategy.drain()

    def _make(self, phase: Phase, speeds: Sequence[float]) -> ActivePhase:
        arena, chosen = self._arena, self._environment.settings
        number, self._made = self._made, self._made + 1  # part of the names of their memory
        team, rendezvous = self._team(phase, speeds)
        sources = team.teams if phase.traits.grouped else arena.workers
        divisor = float(sources) if phase.traits.divides_rate and chosen.divide_rate else 1.0
        encoding = Encoding(phase.codec, chosen.rate, arena.sleep, chosen.seed * 64 + arena.rank)
        kind, gates, gone = STRATEGIES.get(phase.name), Gates(), self._rendezvous.someone_left
        contexts = [
            StrategyContext(
                replica, shared, arena, self._environment.clock, team, divisor, encoding,
                f"{number}.{i}", gates, gone, self._toll,
            )
            for i, (replica, shared) in enumerate(zip(self.replicas, self.shared, strict=True))
        ]  # fmt: skip
        strategies = [kind(context, **phase.options) for context in contexts]
        return ActivePhase(phase, team, rendezvous, strategies)

    def _team(self, phase: Phase, speeds: Sequence[float]) -> tuple[Team, Rendezvous]:
        arena, rendezvous = self._arena, self._rendezvous
        if not phase.traits.grouped:
            return dataclasses.replace(everyone(arena), meet=rendezvous.wait), rendezvous
        from phalanx.policies.grouping import teams_of

        groups = teams_of(phase, arena.workers, self._machines, speeds)
        team = team_of(arena, groups)
        rendezvous = Rendezvous(arena, team.barrier, team.members)
        return dataclasses.replace(team, meet=rendezvous.wait), rendezvous

    def _machines(self) -> list[str]:
        arena = self._arena
        cells = arena.region("machines", arena.workers, torch.int64).numpy()
        cells[arena.rank] = zlib.crc32(self._environment.machine.encode())
        arena.barrier()
        return [str(cell) for cell in cells]
