"""Runs a function as several ranks in scripted time, for properties of what ranks do together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from devices import DEVICE
from torch import nn

from phalanx.core.spec import STRATEGIES, Phase, parse_spec
from phalanx.policies.grouping import by_size
from phalanx.sync.arena.arena import Arena
from phalanx.sync.arena.clock import MonotonicClock
from phalanx.sync.arena.memory_arena import Hub, ThreadArena
from phalanx.sync.arena.team import Team, everyone, team_of
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.shared_state import SharedState
from phalanx.sync.strategy import Strategy, StrategyContext

LIMIT = 180.0


@dataclass
class Begun:
    """A strategy on one rank, and what it works on."""

    strategy: Strategy
    shared: SharedState
    team: Team
    phase: Phase


def strategy_on(
    arena: Arena, spec: str, *given: nn.Parameter, tag: object = "", **more: Any
) -> Begun:
    """The strategy ``spec`` for parameters that plain SGD updates, at a rate of 1."""
    phase = parse_spec(spec).phases[0]
    replica = Replica(torch.optim.SGD(given, lr=1.0), arena.workers)
    shared = SharedState(arena, replica, f"o{tag}")
    groups = by_size(arena.workers, int(phase.options.get("size", 2)))
    team = team_of(arena, groups) if phase.traits.grouped else everyone(arena)
    clock = more.pop("clock", None) or MonotonicClock()
    context = StrategyContext(replica, shared, arena, clock, team, tag=f"s{tag}", **more)
    return Begun(STRATEGIES.get(phase.name)(context, **phase.options), shared, team, phase)


def zeros(size: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(size, device=DEVICE))


def scripted(workers: int, work: Callable[[int, ThreadArena], Any], seed: int = 0) -> list[Any]:
    """``work(rank, arena)`` on every rank; returns what each returned.

    The same seed gives the same order of everything, another one another.
    """
    hub = Hub(workers, seed)
    return as_threads(hub, lambda rank: work(rank, hub.arena(rank)))


def as_threads(hub: Hub, work: Callable[[int], Any]) -> list[Any]:
    """``work(rank)`` in one thread for each rank of ``hub``; the first error is raised here."""
    results: list[Any] = [None] * hub.workers
    errors: list[BaseException] = []

    def live(rank: int) -> None:
        try:
            with hub.turn(rank):
                try:
                    results[rank] = work(rank)
                except BaseException as error:
                    errors.append(error)  # before the others are told, and fail too
                    hub.abort()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=live, args=(r,), daemon=True) for r in range(hub.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    hanging = any(thread.is_alive() for thread in threads)
    hub.abort()
    if errors:
        raise errors[0]
    assert not hanging, "a rank hangs"
    return results
