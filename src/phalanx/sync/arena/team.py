"""Workers that step together: everyone, a group, or a worker by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from phalanx.sync.arena.arena import Arena, SubsetBarrier


@dataclass(frozen=True)
class Team:
    """One worker's view of its team. ``meet`` is the barrier that begins a step of the team."""

    members: tuple[int, ...]
    index: int
    """The place of this worker among the members."""
    teams: int
    """How many teams there are."""
    barrier: SubsetBarrier
    meet: Callable[[], object]
    """The barrier that begins a step; it also checks that all members mean the same step."""

    @cached_property
    def size(self) -> int:
        return len(self.members)


def subset_barrier_of(arena: Arena, members: Sequence[int]) -> SubsetBarrier:
    return (lambda gone=None: None) if len(members) == 1 else arena.subset_barrier(members)


def team_of(arena: Arena, teams: Sequence[Sequence[int]]) -> Team:
    """Return the one of ``teams`` that this worker is in; its ``meet`` is a plain barrier."""
    members = tuple(next(t for t in teams if arena.rank in t))
    barrier = subset_barrier_of(arena, members)
    return Team(members, members.index(arena.rank), len(teams), barrier, barrier)


def everyone(arena: Arena) -> Team:
    return team_of(arena, [range(arena.workers)])
