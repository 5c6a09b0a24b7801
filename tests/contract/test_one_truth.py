"""The engines of the planner and the strategies themselves tell the same story.

Both get the same seconds of computing for each worker and step. The strategies run unchanged, in
scripted time, where a lock costs nothing here; what is compared is each step of each worker: when
it began, when the worker was admitted to go on, and how many updates its parameters had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meeting_steps import Step, meeting_steps
from scripted import scripted, strategy_on, zeros
from strategy_cases import examples

from phalanx.core.spec import parse_spec
from phalanx.plan.timing.free import run_free, run_groups
from phalanx.plan.timing.lockstep import run_lockstep
from phalanx.plan.timing.work import FreeCluster
from phalanx.policies.admission import Dynamic, Free, Rule, Stale
from phalanx.policies.grouping import by_size
from phalanx.sync.arena import memory_arena
from phalanx.sync.arena.arena import Arena

SIZE = 40  # numbers: a few for the shard of each of eight workers


@dataclass(frozen=True)
class Case:
    spec: str
    seconds: list[list[float]]
    """Of each worker, step by step."""
    seed: int

    @property
    def workers(self) -> int:
        return len(self.seconds)

    @property
    def table(self) -> np.ndarray[Any, Any]:
        longest = max(map(len, self.seconds))
        return np.array([own + [1.0] * (longest - len(own)) for own in self.seconds])

    @property
    def lost(self) -> list[tuple[int, int]]:
        return [(rank, len(own)) for rank, own in enumerate(self.seconds)]

    @property
    def options(self) -> dict[str, Any]:
        return dict(parse_spec(self.spec).phases[0].options)

    def trained(self) -> list[Step]:
        """As the strategy has it: each gradient is one, and each update takes one away."""
        with mock.patch.object(memory_arena, "LOCK_SECONDS", 0.0):
            return sorted(s for own in scripted(self.workers, self._work, self.seed) for s in own)

    def _work(self, rank: int, arena: Arena) -> list[Step]:
        made = strategy_on(arena, self.spec, parameter := zeros(SIZE))
        strategy, shared, phase = made.strategy, made.shared, made.phase
        strategy.begin()
        found: list[Step] = []
        for step, seconds in enumerate(self.seconds[rank]):
            strategy.arrive()
            agreed = shared.parameters[0] if phase.traits.local else parameter.detach()
            began, version = arena.pace.now(), -round(float(agreed.max()))
            arena.sleep(seconds)
            parameter.sum().backward()
            strategy.exchange(1.0)
            last = step + 1 == len(self.seconds[rank])
            if phase.traits.local:
                version //= strategy.every
                if (step + 1) % strategy.every == 0 or last:
                    strategy.agree()
            found.append((rank, step, began, arena.pace.now(), version))
        strategy.rest()
        strategy.drain()
        return found


def predicted(case: Case, run: Callable[..., object], *words: Any, **options: Any) -> list[Step]:
    found: list[Step] = []
    run(*words, seed=0, draws=case.table, trace=lambda *step: found.append(step), **options)
    return sorted(found)


def met(case: Case, every: int = 1) -> list[Step]:
    """The steps, whose sums are what the engine of those who meet answers."""
    steps = meeting_steps(case.table, every)
    found = run_lockstep(
        np.ones(case.workers), 0.0, 0.0, case.table.shape[1], seed=0, every=every, draws=case.table
    )
    assert found.seconds == pytest.approx(max(step[3] for step in steps), rel=1e-9)
    waited = np.zeros(case.workers)
    for rank, step, began, admitted, _ in steps:
        waited[rank] += admitted - began - case.table[rank, step]
    assert found.waited == pytest.approx(waited, rel=1e-9, abs=1e-9)
    return steps


def cluster(workers: int) -> FreeCluster:
    alone, here = [float("inf")], [0] * workers
    return FreeCluster([1.0] * workers, 0.0, here, [0], 1.0, 1.0, alone, alone, 0.0, 0.0)


def assert_same(real: list[Step], engine: list[Step]) -> None:
    assert [step[:2] for step in engine] == [step[:2] for step in real]
    for column in (2, 3):
        times = [[step[column] for step in one] for one in (engine, real)]
        assert times[0] == pytest.approx(times[1], rel=1e-9)
    assert [step[4] for step in engine] == [step[4] for step in real]


@st.composite
def cases(draw: st.DrawFn, specs: st.SearchStrategy[str], *, equal: bool = False) -> Case:
    """Speeds are unlike, and each step is a little different; nothing happens at once."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    workers = int(random.integers(2, 9))
    steps = random.integers(12 if equal else 0, 13 if equal else 25, workers)
    if not equal and random.random() < 0.5:
        steps[:] = 25
    means = random.uniform(0.05, random.choice([0.06, 0.3, 2.0]), workers)
    seconds = [
        (mean * random.uniform(0.6, 1.4, count)).tolist()
        for mean, count in zip(means, steps, strict=True)
    ]
    return Case(draw(specs), seconds, draw(st.integers(0, 1 << 20)))


def rule_of(case: Case) -> Rule:
    name, options = parse_spec(case.spec).phases[0].name, case.options
    if name == "async":
        return Free()
    if name == "ssp":
        return Stale(int(options["bound"]))
    return Dynamic(int(options["low"]), int(options["high"]))


BOUNDS = st.integers(0, 5).map(lambda bound: f"ssp:bound={bound}")
RANGES = st.tuples(st.integers(0, 3), st.integers(1, 6)).map(
    lambda r: f"dssp:low={r[0]}:high={r[0] + r[1]}"
)


@pytest.mark.parametrize("specs", [st.just("async"), BOUNDS, RANGES], ids=["async", "ssp", "dssp"])
@examples(25)
@given(data=st.data())
def test_those_who_push_alone(specs: st.SearchStrategy[str], data: st.DataObject) -> None:
    """Also some that end before the others."""
    case = data.draw(cases(specs))
    words = cluster(case.workers), rule_of(case), case.table.shape[1]
    assert_same(case.trained(), predicted(case, run_free, *words, lost=case.lost))


@examples(20)
@given(cases(st.sampled_from(["allreduce", "bsp"]), equal=True))
def test_those_who_meet_in_every_step(case: Case) -> None:
    real = case.trained()
    assert_same(real, met(case))
    pushed = predicted(case, run_free, cluster(case.workers), Stale(0), case.table.shape[1])
    assert_same(  # pushes are counted one by one there
        real, [(*step[:4], step[4] // case.workers) for step in pushed]
    )


@examples(20)
@given(cases(st.integers(1, 5).map(lambda every: f"localsgd:every={every}"), equal=True))
def test_those_who_meet_every_few_steps(case: Case) -> None:
    assert_same(case.trained(), met(case, case.options["every"]))


@examples(20)
@given(cases(st.integers(1, 4).map(lambda size: f"groups:size={size}"), equal=True))
def test_those_who_meet_in_groups(case: Case) -> None:
    teams = by_size(case.workers, case.options["size"])
    words = cluster(case.workers), teams, [0.0] * len(teams), case.table.shape[1]
    found = predicted(case, run_groups, *words)
    engine = [(rank, *step[1:]) for step in found for rank in teams[step[0]]]
    assert_same(case.trained(), sorted(engine))
