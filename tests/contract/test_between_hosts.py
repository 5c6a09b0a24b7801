"""Between two hosts: in short what the contract is there (``PHALANX_TEST_HOSTS=2 pytest …`` is the
whole), scripts that do this and that, and codecs that lose nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from adopted_runs import Result, alone, joined
from adopted_scripts import short_loop
from adopted_text import text_of
from devices import AWAY
from plain_compare import assert_same_optimizer
from strategy_cases import is_lockstep
from test_adopted_loops import assert_as_alone
from torch import Tensor, nn
from training import Training, train_epoch

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.sync.collective.algorithms import ahead
from phalanx.sync.reduce import early_gradients
from phalanx.train.api.run import Run

WORKERS = 3  # two on the first host, one on the second
CODECS = ["topk:ratio=0.1", "powersgd:rank=1"]
RATE = 0.25
SPECS = [
    "allreduce",
    "bsp",
    "async",
    "ssp:bound=3",
    "groups:size=2",
    "localsgd:every=3",
    "async+topk:ratio=0.25",
    "allreduce@0.5/async",
]
IDLE = {"samples": 33}  # the last batch has one sample: the others have none of it
ANYWHERE: dict[str, dict[str, Any]] = {
    "unfrozen after a few batches": {"branch": "within", "optimizer": "adamw"},
    "added at an epoch": {"branch": "added"},
    "saved by the first": {"optimizer": "adam", "saves": True, "first_saves": True},
    "one cycle, idle": {**IDLE, "epochs": 3, "schedule": "onecycle", "per": "batch"},
}
BY_TURNS: dict[str, dict[str, Any]] = {
    "clip": {"clip": "norm"},
    "clip each time": {"clip": "norm", "clips_each": True, "accumulate": 2},
    "look, idle": {**IDLE, "clip": "look"},
    "a declared sum": {"loss": "sum", "seed": 1},
}

pytestmark = pytest.mark.skipif(
    AWAY or ranks.HOSTS > 1, reason="the whole contract runs elsewhere already"
)


@pytest.fixture(autouse=True)
def _two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "HOSTS", 2)
    monkeypatch.setattr(ranks, "places", lambda: None)


@pytest.mark.parametrize("spec", SPECS)
def test_on_two_hosts_as_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    found = Training(tmp_path / "two", spec, WORKERS).run()
    assert found.counts() == found.once()
    states = [found.state(rank) for rank in range(WORKERS)]
    for name, value in states[0].items():
        assert all(torch.equal(value, state[name]) for state in states), name
    if is_lockstep(spec):
        monkeypatch.setattr(ranks, "HOSTS", 0)
        expected = Training(tmp_path / "one", spec, WORKERS).run().state()
        for name, value in expected.items():
            assert torch.allclose(states[0][name], value, rtol=0, atol=1e-5), name


@pytest.mark.timeout(180)
@pytest.mark.parametrize("hosts", [1, 2])
def test_squares_that_are_finite_although_their_sum_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    """A worker alone adds up all squares, which overflows; of two each adds up a half."""
    monkeypatch.setattr(ranks, "HOSTS", hosts)

    def work(rank: int) -> list[float]:
        model = nn.Linear(1 << 12, 1, bias=False)
        nn.init.zeros_(model.weight)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1e-18))
        for _ in run.epochs(1):
            for (x,) in run.batches((torch.full((6, 1 << 12), 1.2e18),), batch=3):
                run.backward(model(x).mean())
                run.step()
        return model.weight.detach().flatten().tolist()

    for weights in ranks.as_ranks(WORKERS, tmp_path, work, RunSettings(strategy="allreduce")):
        assert weights == pytest.approx([-2.4] * (1 << 12), rel=1e-5)


# -- scripts ---------------------------------------------------------------------------------


@pytest.fixture(params=["ahead", pytest.param("at the step", marks=pytest.mark.slow)])
def leave(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Gradients leave at their step, or as soon as they are there."""
    if request.param == "ahead":
        monkeypatch.setattr(ahead, "WORTHWHILE", 0)
        monkeypatch.setattr(early_gradients, "LEAST", 1)


def _ended(folder: Path, choices: dict[str, Any], strategy: str) -> tuple[list[Result], Result]:
    """What each worker ended with, and one process."""
    script = folder / "train.py"
    script.write_text(text_of(short_loop(**choices)), encoding="utf-8")
    found = joined(script, WORKERS, folder / "run", strategy=strategy)
    return [ended.result for ended in found], alone(script)


@pytest.mark.usefixtures("leave")
@pytest.mark.parametrize("name", [*ANYWHERE, *BY_TURNS])
def test_a_script_as_in_plain_torch(tmp_path: Path, name: str) -> None:
    ended, wanted = _ended(tmp_path, (ANYWHERE | BY_TURNS)[name], "allreduce")
    for found in ended:
        assert_as_alone(found, wanted)


@pytest.mark.usefixtures("leave")
@pytest.mark.parametrize("strategy", ["async", "ssp", "localsgd", "bsp"])
@pytest.mark.parametrize("name", ANYWHERE)
def test_every_strategy_between_two_hosts(tmp_path: Path, name: str, strategy: str) -> None:
    ended, wanted = _ended(tmp_path, ANYWHERE[name], strategy)
    assert any(found["seen"] for found in ended)
    for found in ended:
        if found["seen"]:  # without a batch, a worker's script never advances its schedule
            assert found["rates"] == pytest.approx(wanted["rates"], rel=1e-9)
        for key in wanted["weights"]:
            assert torch.equal(found["weights"][key], ended[0]["weights"][key]), key
            assert bool(found["weights"][key].isfinite().all()), key
        if strategy == "bsp":
            assert_as_alone(found, wanted)
    if strategy != "localsgd":  # where each worker has a state of its own
        assert_same_optimizer(ended[0]["optimizer"], ended[-1]["optimizer"], "optimizer")


# -- codecs -----------------------------------------------------------------------------------


def _train(run: Run, model: nn.Linear) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(45, 12, generator=generator)
    y = torch.randint(0, 5, (45,), generator=generator)
    for _ in run.epochs(4):
        train_epoch(run, model, (x, y), 9)


def _owed(state: dict[str, Tensor], like: Tensor) -> Tensor:
    """What the codec of this worker's stream still keeps."""
    kept = [value for name, value in sorted(state.items()) if name.endswith(".residual")]
    return torch.cat(kept) if kept else torch.zeros_like(like)


def _strategy(run: Run) -> Any:
    return run.engine._phases.current.strategies[0]  # type: ignore[attr-defined]


def _ranks(folder: Path, spec: str, work: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    found: list[tuple[Tensor, Tensor, Tensor]] = ranks.as_ranks(
        WORKERS, folder, work, RunSettings(strategy=spec)
    )
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_what_hosts_sum_and_what_they_owe_are_all_gradients(tmp_path: Path, codec: str) -> None:
    """Every host gets the same sum; each leader owes what its messages left out."""

    def work(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(12, 5, bias=False)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=RATE))
        strategy = _strategy(run)
        summing = strategy._reducer._summing
        given, arrived = torch.zeros(60), torch.zeros(60)
        add_up = summing.sum

        def watched(factor: float = 1.0, **how: Any) -> int:
            given.add_(summing._sums[0])
            count: int = add_up(**how)
            arrived.add_(summing._sums[0])
            summing._sums[0].mul_(factor)
            assert count > 0
            return count

        summing.sum = watched
        _train(run, model)
        return given, arrived, _owed(strategy.export_private(), given)

    found = _ranks(tmp_path, f"allreduce+{codec}", work)
    sums = [arrived for _, arrived, _ in found if bool(arrived.any())]
    assert len(sums) == ranks.HOSTS, "one leader on each host"
    assert all(torch.equal(sums[0], other) for other in sums)
    given = torch.stack([one[0] for one in found]).sum(0)
    owed = torch.stack([one[2] for one in found]).sum(0)
    assert bool(given.any()) and bool(owed.any())
    assert torch.allclose(given, sums[0] + owed, atol=1e-4)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("strategy", ["async", "ssp:bound=2"])
def test_what_servers_apply_and_what_workers_owe_are_all_gradients(
    tmp_path: Path, strategy: str, codec: str
) -> None:
    """With plain SGD the parameters themselves say what was applied, whoever pushed it."""

    def work(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(12, 5, bias=False)
        before = model.weight.detach().flatten().clone()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=RATE))
        free, given = _strategy(run), torch.zeros(60)
        encode = free._store.encode

        def watched(buffers: Any) -> int:
            given.add_(buffers.flats[0])
            count: int = encode(buffers)
            return count

        free._store.encode = watched
        _train(run, model)
        owed = _owed(free.export_private(), given)
        moved = before - model.weight.detach().flatten()
        return given, owed, moved / (RATE * free._rate_factor)

    found = _ranks(tmp_path, f"{strategy}+{codec}", work)
    given = torch.stack([one[0] for one in found]).sum(0)
    owed = torch.stack([one[1] for one in found]).sum(0)
    applied = found[0][2]  # all began with the first one's parameters
    assert bool(given.any()) and bool(owed.any())
    assert torch.allclose(given, applied + owed, atol=1e-3)
