"""The search against brute force, under the same model, on random pools."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from made_plans import MBIT, costs, job, probe

from phalanx.plan.choice.decide import decide
from phalanx.plan.choice.objectives import OBJECTIVES, Objectives
from phalanx.plan.choice.search import best_by_size, choosable, selections
from phalanx.plan.cost.model import CostModel
from phalanx.plan.prediction import Prediction
from phalanx.pool.machine import Machine

NAMES = [f"m{i}" for i in range(8)]


def _pool(luck: random.Random) -> tuple[CostModel, list[Machine]]:
    names = NAMES[: luck.randint(1, 8)]
    speeds = {
        name: costs(
            10 ** luck.uniform(-5, -1),
            fixed=10 ** luck.uniform(-4, -2),
            update=10 ** luck.uniform(-4, -2),
            start=luck.uniform(1, 10),
        )
        for name in names
    }
    work = job(
        speeds,
        gradient_bytes=int(10 ** luck.uniform(4, 8.5)),
        batch=luck.choice([16, 64, 256, 1024]),
        samples=luck.choice([1000, 60_000]),
        epochs=luck.choice([1, 10]),
    )
    rates = {name: luck.choice([10, 100, 1000, 10_000]) * MBIT for name in names}
    pool = [
        Machine(
            name=name,
            host=f"{name}.test",
            cores=4,
            gpus=luck.choice([0, 0, 0, 2]),
            watts=luck.uniform(5, 500),
            price_per_hour=luck.uniform(0.1, 5),
        )
        for name in names
    ]
    return CostModel(work, probe(names, rates)), pool


def _never(strategy: str, workers: int) -> bool:
    return False


def _brute(model: CostModel, pool: list[Machine], goal: Objectives) -> Prediction:
    best: dict[int, Prediction] = {}
    for size in range(1, len(pool) + 1):
        every = [p for s in combinations(pool, size) for p in choosable(model, s, _never)]
        best[size] = min(every, key=lambda p: goal.value(p).value)
    return decide(best, goal)


def _hold(seeds: range) -> None:
    for seed in seeds:
        luck = random.Random(seed)
        model, pool = _pool(luck)
        goal = Objectives(luck.choice(OBJECTIVES))
        found = [p for s in selections(model, pool) for p in choosable(model, s, _never)]
        chosen = goal.value(decide(best_by_size(found, goal), goal)).value
        assert chosen <= 1.02 * goal.value(_brute(model, pool, goal)).value, f"seed {seed}"


def test_the_choice_is_that_of_brute_force() -> None:
    _hold(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 200))
def test_the_choice_is_that_of_brute_force_on_a_thousand_pools(first: int) -> None:
    _hold(range(first, first + 200))
