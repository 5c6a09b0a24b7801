"""Strategies run unchanged over the in-memory transport with a clock that a script moves."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from scripted import scripted, strategy_on
from torch import nn

from phalanx.core.spec import known_strategies
from phalanx.sync.arena.arena import Arena
from phalanx.sync.strategy import Timing


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
        strategy = strategy_on(arena, name, *model.parameters(), clock=ScriptedClock()).strategy
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
        spec = f"{name}:overlap=yes"
        strategy = strategy_on(arena, spec, *model.parameters(), clock=clock).strategy
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
