"""A phase of the strategy, made real: who steps with whom, and a strategy per optimizer."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from phalanx.core.spec import STRATEGIES, Phase
from phalanx.sync.arena.arena import Arena
from phalanx.sync.arena.clock import Clock
from phalanx.sync.reduce import grouping as teams
from phalanx.sync.reduce.encoding import Wire
from phalanx.sync.reduce.team import Team, everyone, team_of
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.shared_state import SharedState
from phalanx.sync.store.admission_gate import Gates
from phalanx.sync.strategies.strategy import Strategy, StrategyContext
from phalanx.train.control.rendezvous import Rendezvous

DEFAULT_GROUP = 2


@dataclass(frozen=True)
class ActivePhase:
    phase: Phase
    team: Team
    meeting: Rendezvous
    strategies: list[Strategy]

    @cached_property
    def lockstep(self) -> bool:
        return self.phase.traits.lockstep

    @cached_property
    def together(self) -> bool:
        """Whether every step begins with a meeting of the team."""
        traits = self.phase.traits
        return self.team.size > 1 and not traits.local and (traits.lockstep or traits.grouped)

    @cached_property
    def every(self) -> int:
        """Batches of a round of training apart; 0 where there are none."""
        return self.strategies[0].every if self.phase.traits.local else 0


@dataclass(frozen=True)
class PhaseFactory:
    """What stages are made of."""

    arena: Arena
    clock: Clock
    replicas: list[Replica]
    shared: list[SharedState]
    meeting: Rendezvous
    divide_rate: bool
    wire: Wire
    machine: str

    def stage(self, phase: Phase, number: int, speeds: Sequence[float]) -> ActivePhase:
        """Collective; ``number`` tells apart the memory of several stages."""
        team, meeting = self._team(phase, speeds)
        sources = team.teams if phase.traits.grouped else self.arena.workers
        divisor = float(sources) if phase.traits.divides_rate and self.divide_rate else 1.0
        wire = dataclasses.replace(self.wire, codec=phase.codec)
        kind, gates, gone = STRATEGIES.get(phase.name), Gates(), self.meeting.someone_left
        contexts = [
            StrategyContext(
                replica, shared, self.arena, self.clock, team, divisor, wire, f"{number}.{i}",
                gates, gone,
            )
            for i, (replica, shared) in enumerate(zip(self.replicas, self.shared, strict=True))
        ]  # fmt: skip
        return ActivePhase(
            phase, team, meeting, [kind(context, **phase.options) for context in contexts]
        )

    def _team(self, phase: Phase, speeds: Sequence[float]) -> tuple[Team, Rendezvous]:
        if not phase.traits.grouped:
            team = everyone(self.arena)
            return dataclasses.replace(team, meet=self.meeting.wait), self.meeting
        team = team_of(self.arena, self._groups(phase, speeds))
        meeting = Rendezvous(self.arena, team.circle, team.members)
        return dataclasses.replace(team, meet=meeting.wait), meeting

    def _groups(self, phase: Phase, speeds: Sequence[float]) -> list[tuple[int, ...]]:
        by, size = phase.options.get("by", "rank"), phase.options.get("size")
        if by == "machine":
            return teams.by_machine(self._machines())
        if by == "speed":
            return teams.by_speed(speeds, int(size) if size is not None else None)
        return teams.by_size(self.arena.workers, int(size or DEFAULT_GROUP))

    def _machines(self) -> list[str]:
        cells = self.arena.region("machines", self.arena.workers, torch.int64).numpy()
        cells[self.arena.rank] = zlib.crc32(self.machine.encode())
        self.arena.barrier()
        return [str(cell) for cell in cells]
