"""Strategies run unchanged over the in-memory transport with a clock that a script moves."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from phalanx.core.spec import STRATEGIES, known_strategies
from phalanx.sync.replica import Replica
from phalanx.sync.shared_state import SharedState
from phalanx.sync.strategy import StrategyContext, Timing
from phalanx.sync.transport.memory import Hub


class ScriptedClock:
    """Every reading is one second after the last."""

    def __init__(self) -> None:
        self.reading = 0.0

    def now(self) -> float:
        self.reading += 1.0
        return self.reading


@pytest.mark.parametrize("name", [n for n in known_strategies() if n != "single"])
def test_timings_come_from_the_clock_alone(name: str) -> None:
    hub, timings, models = Hub(2), {}, [nn.Linear(3, 2) for _ in range(2)]

    def work(rank: int) -> None:
        arena, model = hub.arena(rank), models[rank]
        replica = Replica(torch.optim.SGD(model.parameters(), lr=0.5), 2)
        shared = SharedState(arena, replica, "o")
        strategy = STRATEGIES.get(name)(StrategyContext(replica, shared, arena, ScriptedClock()))
        strategy.begin()
        model(torch.full((1, 3), rank + 1.0)).sum().backward()
        timings[rank] = strategy.exchange(1.0)
        strategy.drain()

    threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert set(timings) == {0, 1}
    for timing in timings.values():
        assert isinstance(timing, Timing)
        parts = (timing.send, timing.wait, timing.reduce, timing.update, timing.settle)
        assert all(part == int(part) for part in parts)  # whole scripted seconds
        assert sum(parts) >= 3
    assert torch.equal(models[0].weight, models[1].weight)
