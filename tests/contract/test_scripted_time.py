"""Strategies run unchanged over the in-memory transport with a clock that a script moves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from ranks import as_ranks
from scripted import scripted
from torch import Tensor, nn

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.core.spec import STRATEGIES, known_strategies
from phalanx.sync.arena.arena import Arena
from phalanx.sync.arena.team import everyone
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.shared_state import SharedState
from phalanx.sync.strategy import StrategyContext, Timing


class ScriptedClock:
    """Every reading is one second after the last."""

    def __init__(self) -> None:
        self.reading = 0.0

    def now(self) -> float:
        self.reading += 1.0
        return self.reading


@pytest.mark.parametrize("name", [n for n in known_strategies() if n != "single"])
def test_timings_come_from_the_clock_alone(name: str) -> None:
    models = [nn.Linear(3, 2) for _ in range(2)]

    def work(rank: int, arena: Arena) -> list[Timing]:
        model = models[rank]
        replica = Replica(torch.optim.SGD(model.parameters(), lr=0.5), 2)
        shared = SharedState(arena, replica, "o")
        context = StrategyContext(replica, shared, arena, ScriptedClock(), everyone(arena), tag="s")
        strategy = STRATEGIES.get(name)(context)
        strategy.begin()
        model(torch.full((1, 3), rank + 1.0)).sum().backward()
        timings = [strategy.exchange(1.0)]
        if known_strategies()[name].local:
            timings.append(strategy.agree())
        strategy.drain()
        return timings

    for timings in scripted(2, work):
        parts = [p for t in timings for p in (t.send, t.wait, t.reduce, t.update, t.settle)]
        assert all(part == int(part) for part in parts)  # whole scripted seconds
        assert sum(parts) >= 3
    assert torch.equal(models[0].weight, models[1].weight)


@pytest.mark.parametrize("name", ["async", "ssp"])
def test_a_push_beside_the_next_step_is_told_with_that_step(name: str) -> None:
    def work(rank: int, arena: Arena) -> tuple[list[Timing], float]:
        model, clock = nn.Linear(3, 2), ScriptedClock()
        replica = Replica(torch.optim.SGD(model.parameters(), lr=0.5), 2)
        shared = SharedState(arena, replica, "o")
        context = StrategyContext(replica, shared, arena, clock, everyone(arena), tag="s")
        strategy = STRATEGIES.get(name)(context, overlap="yes")
        strategy.begin()
        told = []
        for _ in range(4):
            model(torch.ones(1, 3)).sum().backward()
            given = strategy.exchange(1.0)
            told.append(dataclasses.replace(given))  # whoever asked reads it at once
        took = clock.reading
        strategy.rest()
        strategy.drain()
        return told, took

    for told, took in scripted(2, work):
        assert told[0].update == 0.0  # nothing was pushed before
        assert all(timing.update > 0.0 for timing in told[1:])
        assert any(timing.staleness for timing in told)
        assert sum(t.send + t.wait + t.reduce + t.update + t.settle for t in told) <= took


def _trained(folder: Path, seed: int, strategy: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(96, 6, generator=generator)
    y = torch.randint(0, 3, (96,), generator=generator)
    torch.manual_seed(3)
    models = [nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3)) for _ in range(3)]

    def work(rank: int) -> None:
        optimizer = torch.optim.SGD(models[rank].parameters(), lr=0.2, momentum=0.9)
        loss = nn.functional.cross_entropy
        phalanx.fit(models[rank], optimizer=optimizer, loss=loss, train=(x, y), epochs=2, batch=24)

    as_ranks(3, folder, work, RunSettings(strategy=strategy, seed=1), seed)
    return [parameter.detach() for parameter in models[0].parameters()]


@pytest.mark.parametrize("strategy", ["async", "async:overlap=yes", "ssp", "dssp", "groups"])
def test_an_asynchronous_run_repeats_bit_for_bit_and_another_seed_differs(
    tmp_path: Path, strategy: str
) -> None:
    one, again, other = (
        _trained(tmp_path / str(number), seed, strategy) for number, seed in enumerate([7, 7, 8])
    )
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
