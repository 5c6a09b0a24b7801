"""The rules of choice, on pools made for them; the search against brute force."""

from __future__ import annotations

import random
from itertools import combinations

import msgspec
import pytest
from made_plans import FAST, MBIT, costs, job, machines, probe

from phalanx.core.errors import InputError
from phalanx.plan.choice.decide import Choice, choose_plan, decide
from phalanx.plan.choice.evidence import Losses, earliest_switch, learn_factors
from phalanx.plan.choice.objectives import OBJECTIVES, Objectives
from phalanx.plan.choice.search import best_by_size, choosable, selections
from phalanx.plan.cost.model import CostModel
from phalanx.plan.job import JobProfile
from phalanx.plan.prediction import Prediction
from phalanx.pool.machine import Machine
from phalanx.pool.measured import Probe


def _choose(
    work: JobProfile,
    pool: list[Machine],
    links: Probe | None,
    losses: Losses | None = None,
    **goal: object,
) -> Choice:
    model = CostModel(work, links)
    return choose_plan(model, pool, Objectives(**goal), losses)  # type: ignore[arg-type]


EQUAL = job({"a": 0.01, "b": 0.01})


def test_a_gain_that_is_not_certain_goes_to_fewer() -> None:
    """Twice as fast by the figures, but the link is a guess."""
    near = job({"a": 0.01, "b": 0.01}, gradient_bytes=30_000_000)
    assert len(_choose(near, machines("ab"), None).chosen.machines) == 1
    assert len(_choose(near, machines("ab"), probe("ab", 125e6)).chosen.machines) == 1
    assert len(_choose(near, machines("ab"), probe("ab", 1250e6)).chosen.machines) == 2


def test_compression_is_faster_with_unknown_accuracy_on_a_slow_link() -> None:
    large = job({"a": 0.5, "b": 0.5}, gradient_bytes=100_000_000)
    found = _choose(large, machines("ab"), probe("ab", 50 * MBIT))
    coded = [p for p in found.unknown if p.strategy == "allreduce+int8"]
    assert coded
    assert any("accuracy unknown" in reason for reason in found.reasons)


def _pairs(loss: float, count: int) -> Losses:
    return {("allreduce+int8", 2): dict.fromkeys(range(count), loss)}


@pytest.mark.parametrize(
    ("evidence", "taken"),
    [(_pairs(0.001, 3), True), (_pairs(0.001, 2), False), (_pairs(0.02, 5), False), (None, False)],
)
def test_three_pairs_of_runs_are_evidence(evidence: Losses | None, taken: bool) -> None:
    large = job({"a": 1.0, "b": 1.0}, gradient_bytes=100_000_000)
    found = _choose(
        large, machines("ab"), probe("ab", 50 * MBIT), evidence, max_accuracy_loss=0.003
    )
    assert (found.chosen.strategy == "allreduce+int8") == taken


def test_the_cost_objective_takes_the_cheap_machine() -> None:
    pool = [*machines("a", price_per_hour=9.0), *machines("b", price_per_hour=1.0)]
    work, links = job({"a": 0.01, "b": 0.02}), probe("ab", FAST)
    assert _choose(work, pool, links, objective="cost").chosen.machines == ["b"]
    with_deadline = _choose(work, pool, links, objective="cost", deadline=100.0)
    assert "a" in with_deadline.chosen.machines


def test_impossible_wishes_say_what_is_possible() -> None:
    priced = machines("ab", price_per_hour=3600.0)
    with pytest.raises(InputError, match="no plan meets the deadline") as refused:
        _choose(EQUAL, priced, probe("ab", FAST), deadline=1.0)
    assert "The shortest possible is 3" in str(refused.value.remedy)
    with pytest.raises(InputError, match="within the budget"):
        _choose(EQUAL, priced, probe("ab", FAST), budget=1.0)
    with pytest.raises(InputError, match="needs prices"):
        _choose(EQUAL, machines("ab"), None, objective="cost")
    half = [*machines("a", price_per_hour=1.0), *machines("b")]
    for wish in ({"objective": "cost"}, {"budget": 5.0}):
        with pytest.raises(InputError, match="none for b"):
            _choose(EQUAL, half, None, **wish)
    with pytest.raises(InputError, match="no machine"):
        _choose(EQUAL, [], None)
    with pytest.raises(InputError, match="unknown objective"):
        Objectives("speed")


def test_a_large_pool_is_searched_by_its_quickest_machines() -> None:
    names = [f"m{i}" for i in range(12)]
    work = job({n: costs(0.01 * (1 + i)) for i, n in enumerate(names)})
    found = _choose(work, machines(names), probe(names, FAST))
    assert found.chosen.machines == names[: len(found.chosen.machines)]
    assert len(found.chosen.machines) > 2


def test_factors_are_shrunken_towards_one() -> None:
    off = [(("a", "b"), "allreduce", 1.2)] * 3
    factors = learn_factors([*off, (("a",), "single", 40.0)])
    assert factors["a", "allreduce"] == pytest.approx(1.2**0.5)
    assert ("a", "single") not in factors
    assert learn_factors([]) == {}


def test_a_switch_is_considered_where_it_may_win() -> None:
    """Steps vary so much that machines that wait for each other lose much of the time."""
    plain = costs(0.01)
    varied = msgspec.structs.replace(plain, work=msgspec.structs.replace(plain.work, variation=1.0))
    work, links = job(dict.fromkeys("abcd", varied), gradient_bytes=1000), probe("abcd", FAST)
    found = _choose(work, machines("abcd"), links)
    listed = {each.strategy: each.seconds.value for each in found.unknown}
    assert listed["async"] < listed["switch:at=0.5"] < found.chosen.seconds.value
    evidence = {("switch:at=0.5", 4): {1: 0.0, 2: 0.0, 3: 0.0}}
    assert _choose(work, machines("abcd"), links, evidence).chosen.strategy == "switch:at=0.5"


SEEDS = {1: 0.0, 2: 0.004, 3: 0.001}


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        ({}, None),
        ({("switch:at=0.4", 2): SEEDS, ("switch:at=0.5", 2): SEEDS}, "switch:at=0.4"),
        ({("switch:at=0.2", 2): {1: 0.1, 2: 0.1, 3: 0.1}, ("switch:at=0.5", 2): SEEDS},
         "switch:at=0.5"),
        ({("switch:at=0.4", 2): {1: 0.0, 2: 0.0}}, None),
        ({("switch:at=0.4", 3): SEEDS, ("switch:at=auto", 2): SEEDS, ("async", 2): SEEDS}, None),
    ],
)  # fmt: skip
def test_a_plan_says_which_switch_is_the_earliest_that_keeps_the_accuracy(
    evidence: Losses, found: str | None
) -> None:
    assert earliest_switch(evidence, 2) == found
    (reason,) = [
        each
        for each in _choose(EQUAL, machines("ab"), probe("ab", FAST), evidence).reasons
        if "switch:at=auto" in each
    ]
    assert reason.startswith(f"switch:at=auto is {found or 'switch:at=0.5'}")


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
    _hold(range(40))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 200))
def test_the_choice_is_that_of_brute_force_on_a_thousand_pools(first: int) -> None:
    _hold(range(first, first + 200))
