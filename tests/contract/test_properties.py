"""What holds for any speeds and any order of arrival, in scripted time."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import as_ranks
from scripted import scripted, strategy_on, zeros
from strategy_cases import EVERY, FREE, examples, is_lockstep
from torch import Tensor, nn
from training import CLASSES, FEATURES, Training

import phalanx
from phalanx.core.errors import PeerLost
from phalanx.core.settings import RunSettings
from phalanx.core.spec import known_strategies, parse_spec
from phalanx.policies.admission import AWAY
from phalanx.policies.grouping import by_size
from phalanx.sync.arena.arena import Arena
from phalanx.sync.strategy import Gates, Strategy, Timing

SIZE = 150  # numbers: enough for a shard for each of eight workers
TOLERANCE = 1e-5
SPEED = st.floats(0.05, 1.0)
SEEDS = st.integers(0, 1 << 20)


@dataclass(frozen=True)
class Pushing:
    """Workers that push a gradient of ones again and again, each with a rate of 1."""

    spec: str
    steps: list[int]
    speeds: list[float]
    seed: int
    watch: Callable[[Strategy], None] = lambda strategy: None
    rests: list[dict[int, float]] = field(default_factory=list)
    """Of each rank: after how many steps it rests, and for how long."""
    late: list[int] = field(default_factory=list)
    """Collected: how many pushes were not in the parameters that a gradient was computed from."""

    def run(self) -> tuple[Tensor, list[int]]:
        """The parameters and the shards' versions at the end."""
        return scripted(len(self.steps), self._work, self.seed)[0]  # type: ignore[no-any-return]

    def _work(self, rank: int, arena: Arena) -> tuple[Tensor, list[int]]:
        made = strategy_on(arena, self.spec, parameter := zeros(SIZE))
        strategy, first = made.strategy, made.team.members[0] if self._grouped else rank
        strategy.begin()
        rests = self.rests[rank] if self.rests else {}
        for step in range(self.steps[first]):
            strategy.arrive()
            self.watch(strategy)
            known = -int(parameter.detach().max())
            arena.sleep(1.0 / self.speeds[rank])
            parameter.sum().backward()
            self.late.append(int(made.shared.versions.max()) - known)
            strategy.exchange(1.0)
            if step + 1 in rests:
                strategy.rest()
                arena.sleep(rests[step + 1])
        strategy.rest()
        strategy.drain()
        return made.shared.parameters[0].clone(), made.shared.versions.tolist()

    @property
    def _grouped(self) -> bool:
        return parse_spec(self.spec).phases[0].traits.grouped

    @property
    def pushes(self) -> int:
        """Of a group there is one for all its members."""
        if not self._grouped:
            return sum(self.steps)
        size = int(parse_spec(self.spec).phases[0].options.get("size", 2))
        return sum(self.steps[team[0]] for team in by_size(len(self.steps), size))


@st.composite
def _pushing(draw: st.DrawFn, specs: st.SearchStrategy[str]) -> Pushing:
    workers = draw(st.integers(1, 8))
    steps = draw(st.lists(st.integers(0, 12), min_size=workers, max_size=workers))
    speeds = draw(st.lists(SPEED, min_size=workers, max_size=workers))
    rest = st.dictionaries(st.integers(1, 12), st.floats(0.0, 100.0), max_size=3)
    rests = draw(st.lists(rest, min_size=workers, max_size=workers))
    return Pushing(draw(specs), steps, speeds, draw(SEEDS), rests=rests)


BOUNDS = st.integers(0, 5).map(lambda bound: f"ssp:bound={bound}")
RANGES = st.tuples(st.integers(0, 4), st.integers(0, 5)).map(
    lambda r: f"dssp:low={r[0]}:high={r[0] + r[1]}"
)


def _lead(strategy: Strategy) -> int:
    """How many steps the calling worker is ahead of the slowest that is present."""
    gate = strategy._gate  # type: ignore[attr-defined]
    return 0 if gate._steps[gate._rank] == AWAY else gate._clocks().lead(gate._rank)


@examples(60)
@given(_pushing(BOUNDS | RANGES | st.just("ssp:overlap=yes")))
def test_nobody_computes_beyond_the_bound_nor_from_older_parameters(pushing: Pushing) -> None:
    """Nor after a rest. Anybody else is at most a bound behind this worker when it takes its
    parameters, and at most a bound and the push in hand before it when it pushes."""
    options, others = parse_spec(pushing.spec).phases[0].options, len(pushing.steps) - 1
    bound = int(options.get("bound", options.get("high", 3)))
    overlap = options.get("overlap") == "yes"  # a push of its own is under way, and counts

    def watch(strategy: Strategy) -> None:
        limit, gate = bound, strategy._gate  # type: ignore[attr-defined]
        if "low" in options:
            granted, low = int(gate._grants[gate._rank]), int(options["low"])
            assert 0 <= granted <= bound - low
            limit = low + granted
        assert overlap or _lead(strategy) <= limit

    replace(pushing, watch=watch).run()
    assert max(pushing.late, default=0) <= others * (2 * bound + 1 + overlap) + overlap


@st.composite
def _two_optimizers(draw: st.DrawFn) -> tuple[str, list[list[int]], list[float], int]:
    """Of each rank: which of its optimizers it steps, one after the other; -1 is a rest."""
    spec = draw(BOUNDS | RANGES | st.sampled_from(["ssp:bound=0:overlap=yes", "ssp:overlap=yes"]))
    workers = draw(st.integers(2, 4))
    turns = st.lists(st.sampled_from([0, 0, 1, 1, -1]), max_size=14)
    orders = draw(st.lists(turns, min_size=workers, max_size=workers))
    speeds = draw(st.lists(SPEED, min_size=workers, max_size=workers))
    return spec, orders, speeds, draw(SEEDS)


@examples(30)
@given(_two_optimizers())
def test_workers_that_step_two_optimizers_unlike_do_not_block_each_other(
    setting: tuple[str, list[list[int]], list[float], int],
) -> None:
    spec, orders, speeds, seed = setting
    phase, late = parse_spec(spec).phases[0], []

    def work(rank: int, arena: Arena) -> list[Tensor]:
        parameters, gates = [zeros(SIZE), zeros(SIZE)], Gates()
        begun = [strategy_on(arena, spec, p, tag=i, gates=gates) for i, p in enumerate(parameters)]
        made, shared = [one.strategy for one in begun], [one.shared for one in begun]
        for strategy in made:
            strategy.begin()
        for turn in orders[rank]:
            if turn < 0:
                for strategy in made:
                    strategy.rest()
                arena.sleep(30.0)
                continue
            for strategy in made:
                strategy.arrive()
            known = -int(sum(p.detach().max() for p in parameters))
            arena.sleep(1.0 / speeds[rank])
            parameters[turn].sum().backward()
            late.append(sum(int(s.versions.max()) for s in shared) - known)
            made[turn].exchange(1.0)
        for strategy in made:
            strategy.rest()
        for strategy in made:
            strategy.drain()
        return [s.parameters[0].clone() for s in shared]

    ended = scripted(len(orders), work, seed)[0]
    for i, parameter in enumerate(ended):
        pushes = sum(order.count(i) for order in orders)
        assert torch.equal(parameter, torch.full((SIZE,), -float(pushes)))
    bound = int(phase.options.get("bound", phase.options.get("high", 3)))
    overlap = phase.options.get("overlap") == "yes"
    others = len(orders) - 1
    assert max(late, default=0) <= others * (2 * bound + 1 + overlap) + overlap


@pytest.mark.parametrize("delay", [0.004, 0.01, 0.016, 0.022, 0.028, 0.034])
def test_a_training_with_two_optimizers_has_one_gate(tmp_path: Path, delay: float) -> None:
    def work(rank: int) -> bool:
        torch.manual_seed(0)
        models = [nn.Linear(FEATURES, CLASSES) for _ in range(2)]
        numbers = torch.Generator().manual_seed(0)
        data = torch.randn(160, FEATURES, generator=numbers), torch.zeros(160, dtype=torch.int64)
        one, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in models)
        run = phalanx.join(models, [one, other])
        for _ in run.epochs(2):
            if rank == 1:
                run.engine._arena.sleep(delay)  # type: ignore[attr-defined]
            for i, (x, y) in enumerate(run.batches(data, batch=8)):
                run.backward(nn.functional.cross_entropy(models[0](x) + models[1](x), y))
                run.step(one)
                if i % 3 == 2:
                    run.step(other)
        return True

    assert all(as_ranks(2, tmp_path, work, RunSettings(strategy="ssp:bound=0")))


@pytest.mark.parametrize("spec", ["ssp:bound=0", "ssp:bound=1", "bsp"])
def test_nobody_waits_for_a_worker_that_has_left(spec: str) -> None:
    phase, left = parse_spec(spec).phases[0], []

    def work(rank: int, arena: Arena) -> None:
        made = strategy_on(arena, spec, parameter := zeros(SIZE), gone=lambda: bool(left))
        strategy = made.strategy
        strategy.begin()
        strategy.arrive()
        arena.barrier()
        if rank == 1:
            if phase.traits.lockstep:
                strategy.offers.offer(1.0)
                made.team.meet()
            left.append(rank)
            return
        with pytest.raises(PeerLost, match="has left"):
            for _ in range(3):
                parameter.sum().backward()
                strategy.exchange(1.0)

    scripted(2, work)


@examples(40)
@given(
    _pushing(
        st.sampled_from([s for s in FREE if "+" not in s and "by=" not in s]) | BOUNDS | RANGES
    )
)
def test_every_push_is_applied_exactly_once(pushing: Pushing) -> None:
    parameters, versions = pushing.run()
    assert torch.equal(parameters, torch.full((SIZE,), -float(pushing.pushes)))
    assert versions == [pushing.pushes] * len(versions)


# -- what steps are timed by ------------------------------------------------------------------


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


# -- whole trainings -------------------------------------------------------------------------


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _ended(spec: str, workers: int, **options: Any) -> Training:
    with tempfile.TemporaryDirectory() as folder:
        return Training(Path(folder), spec, workers, **options).run()


def _assert_close(one: Training, other: Training) -> None:
    for name, value in one.state().items():
        value, found = value.double(), other.state()[name].double()
        assert (found - value).norm() <= TOLERANCE * max(1.0, float(value.norm())), name


@st.composite
def _setting(draw: st.DrawFn, least: int = 1) -> dict[str, Any]:
    workers = draw(st.integers(least, 8))
    slow = draw(st.lists(SPEED, min_size=workers, max_size=workers))
    return {"workers": workers, "seed": draw(SEEDS), "settings": {"slow": slow}}


@examples(20)
@given(st.sampled_from([*EVERY, "async@0.5/bsp", "localsgd@0.5/groups"]), st.data(), st.booleans())
def test_every_sample_once_and_nobody_waits_for_ever(
    spec: str, data: st.DataObject, balanced: bool
) -> None:
    setting = data.draw(_setting())
    setting["settings"]["balance"] = "auto" if balanced else "off"
    samples = data.draw(st.integers(setting["workers"], 60))
    batch = data.draw(st.integers(setting["workers"], 24))
    ended = _ended(spec, samples=samples, batch=batch, **setting)
    assert ended.counts() == ended.once()
    for rank in range(1, ended.workers):
        assert all(torch.equal(v, ended.state(rank)[k]) for k, v in ended.state().items())


@examples(10)
@given(_setting(least=2))
def test_bsp_equals_allreduce(setting: dict[str, Any]) -> None:
    setting["model"] = _plain  # statistics of one or two samples would magnify rounding
    _assert_close(_ended("bsp", **setting), _ended("allreduce", **setting))


@examples(8)
@given(_setting(least=2), st.integers(1, 3))
def test_ssp_without_slack_equals_bsp(setting: dict[str, Any], each: int) -> None:
    batch = each * setting["workers"]
    sizes = {"samples": 5 * batch, "batch": batch, "model": _plain, "optimizer": _sgd}
    _assert_close(_ended("ssp:bound=0", **sizes, **setting), _ended("bsp", **sizes, **setting))


@pytest.mark.parametrize("spec", ["allreduce", "bsp"])
@examples(5)
@given(seed=SEEDS, slowest=st.floats(0.2, 0.6))
def test_balanced_shares_give_the_gradient_of_equal_ones(
    spec: str, seed: int, slowest: float
) -> None:
    setting = {"samples": 500, "batch": 20, "model": _plain, "seed": seed}
    slow = {"slow": [0.02, 0.02 * slowest, 0.02]}  # steps long enough to be looked at
    equal = _ended(spec, 3, settings=slow, **setting)
    balanced = _ended(spec, 3, settings={**slow, "balance": "auto"}, **setting)
    assert len(balanced.seen[1]) < 0.85 * len(equal.seen[1])  # shares did change
    _assert_close(balanced, equal)


@examples(12)
@given(st.sampled_from([s for s in EVERY if not is_lockstep(s)]), _setting(least=2))
def test_an_asynchronous_run_repeats_bit_for_bit(spec: str, setting: dict[str, Any]) -> None:
    one, again = _ended(spec, **setting), _ended(spec, **setting)
    assert one.seen == again.seen
    assert all(torch.equal(value, again.state()[name]) for name, value in one.state().items())
