"""What a script does between batches and steps, as in plain torch: it reads gradients, saves
states, and trains blocks later."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import AWAY
from plain_compare import assert_near, assert_small
from plain_worlds import CLASSES, as_workers, in_both_worlds, linear
from strategy_cases import SAME_SUM
from torch import Tensor, nn
from torch.nn import functional as F

import phalanx
from phalanx.core.errors import PhalanxError
from phalanx.sync.strategies.team_strategy import GradientAgreement

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")
WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])


def _gradient(model: Any) -> Tensor:
    assert model.weight.grad is not None
    return model.weight.grad.clone()  # type: ignore[no-any-return]


@pytest.mark.parametrize("workers", [2, 3])
def test_a_gradient_that_one_worker_alone_reads_is_right_or_refused(
    tmp_path: Path, workers: int
) -> None:
    def loop(models: Any, batches: Any, backward: Any, step: Any, first: bool) -> Any:
        seen = []
        for x, y in batches:
            backward(F.cross_entropy(models[0](x), y))
            if first:  # as for a figure in a log
                seen.append(float(_gradient(models[0]).norm()))
            step(0)
        return models[0].weight.detach().clone(), seen

    try:
        ended, (weight, norms) = in_both_worlds(tmp_path, workers, lambda: [linear()], loop, lr=0.1)
    except PhalanxError as error:
        assert error.remedy
        return
    assert ended[0][1] == pytest.approx(norms, rel=1e-10)
    for weights, _ in ended:
        assert_near(weights, weight, "weights")


@WORKERS
def test_each_of_two_optimizers_has_gradients_of_its_own(tmp_path: Path, workers: int) -> None:
    """One is clipped and stepped; the other is stepped later, on two batches' gradients."""

    def models() -> list[nn.Module]:
        one, two = linear(), nn.Linear(CLASSES, CLASSES).double()
        nn.init.eye_(two.weight)
        nn.init.zeros_(two.bias)
        return [one, two]

    def loop(models: Any, batches: Any, backward: Any, step: Any, first: bool) -> list[Tensor]:
        one, two = models
        for number, (x, y) in enumerate(batches):
            backward(F.cross_entropy(two(one(x)), y))
            nn.utils.clip_grad_norm_(one.parameters(), 0.1)
            step(0)
            if number % 2:
                step(1)
        return [p.detach().clone() for model in models for p in model.parameters()]

    ended, wanted = in_both_worlds(tmp_path, workers, models, loop, lr=0.1, momentum=0.5)
    for weights in ended:
        for found, value in zip(weights, wanted, strict=True):
            assert_near(found, value, "weights")


AFTER_CLIPPING = {
    "nothing": "",
    "read": "seen.append(float(weight.grad.norm()))",
    "edited": "for p in model.parameters():\n    p.grad.mul_(0.5)",
    "replaced": "weight.grad = weight.grad * 0.5",
    "clipped again": "seen.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.02)))",
    "one more loss": "backward(model(x).square().mean())",
    "zeroed": "if number % 2:\n    model.zero_grad(set_to_none=False)",
    "dropped": "if number % 2:\n    model.zero_grad()",
    "not stepped": "stepped = number % 3 > 0",
}


@WORKERS
@pytest.mark.parametrize("then", AFTER_CLIPPING)
def test_gradients_are_clipped_where_they_are_summed(
    tmp_path: Path, workers: int, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come back to no worker unless the script reads them afterwards."""
    shared: list[int] = []
    plain = GradientAgreement.share
    monkeypatch.setattr(
        GradientAgreement, "share", lambda *given: (shared.append(1), plain(*given))[1]
    )
    act = compile(AFTER_CLIPPING[then], then, "exec")

    def loop(models: Any, batches: Any, backward: Any, step: Any, first: bool) -> Any:
        model, seen = models[0], []
        for number, (x, y) in enumerate(batches):
            backward(F.cross_entropy(model(x), y))
            seen.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
            names = {"model": model, "weight": model.weight, "seen": seen, "number": number, "x": x}
            names |= {"nn": nn, "backward": backward, "stepped": True}
            exec(act, names)
            if names["stepped"]:
                step(0)
        return model.weight.detach().clone(), seen

    ended, (weight, norms) = in_both_worlds(
        tmp_path, workers, lambda: [linear()], loop, lr=0.5, momentum=0.5
    )
    for found, seen in ended:
        assert_near(found, weight, "weights")
        assert seen == pytest.approx(norms, rel=1e-9)
    if then in ("nothing", "one more loss", "zeroed", "dropped", "not stepped"):
        assert not shared


# -- states ----------------------------------------------------------------------------------


@pytest.mark.parametrize("saver", ["all", "first"])
@pytest.mark.parametrize("strategy", SAME_SUM)
def test_the_state_of_an_optimizer_in_the_loop(tmp_path: Path, strategy: str, saver: str) -> None:
    """Each gradient is 1: after n steps Adam has 1 - 0.9ⁿ, and says n. Groups are equal."""
    x = torch.ones(48, 1, dtype=torch.float64)
    seen: list[tuple[int, dict[str, Any], dict[str, Tensor]]] = []

    def work(rank: int) -> None:
        model = nn.Sequential(nn.Linear(1, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        optimizer = torch.optim.Adam(model[0].parameters(), lr=1e-9)
        run = phalanx.join(model, optimizer)
        own = itertools.count(1)
        for _ in run.epochs(2):
            for (part,) in run.batches((x,), batch=12):
                run.backward(model(part).mean())
                run.step()
                number = next(own)
                if saver == "all" or run.is_first:
                    file = io.BytesIO()
                    torch.save([optimizer.state_dict(), model[0].state_dict()], file)
                    file.seek(0)
                    seen.append((number, *torch.load(file)))

    as_workers(4, tmp_path, work, strategy=strategy)
    assert seen
    for own, state, part in seen:
        slots = state["state"][0]
        steps = float(slots["step"])
        assert own <= steps <= 8 * 4
        assert torch.allclose(slots["exp_avg"], torch.full((3, 1), 1 - 0.9**steps).double())
        assert state["param_groups"][0]["lr"] == pytest.approx(1e-9)
        assert_small(part)
        assert_small(slots)


# -- blocks that are trained later -----------------------------------------------------------


@pytest.mark.parametrize("way", ["unfrozen", "added", "added with a group to itself"])
@pytest.mark.parametrize("strategy", SAME_SUM)
def test_trained_later_under_every_strategy(tmp_path: Path, strategy: str, way: str) -> None:
    """The gradient is 1 everywhere and always, so each batch moves each weight by the rate."""
    rate, batches, epochs = 0.1, 4, 3
    x = torch.ones(12 * batches, 1, dtype=torch.float64)

    def work(rank: int) -> list[float]:
        early, late = (nn.Linear(1, 1, bias=False).double() for _ in range(2))
        for layer in (early, late):
            nn.init.zeros_(layer.weight)
        late.requires_grad_(False)
        model = nn.ModuleList([early, late])
        given = model.parameters() if way == "unfrozen" else early.parameters()
        optimizer = torch.optim.SGD(given, lr=rate)
        run = phalanx.join(model, optimizer)
        for epoch in run.epochs(epochs):
            if epoch == 1:
                late.requires_grad_(True)
                if way == "added":
                    optimizer.add_param_group({"params": [late.weight]})
                elif way != "unfrozen":
                    optimizer.add_param_group({"params": late.parameters(), "lr": rate / 4})
            for (part,) in run.batches((x,), batch=12):
                run.backward((early(part) + late(part)).mean())
                run.step()
        return [float(early.weight), float(late.weight)]

    moved = rate * batches
    slower = 0.25 if way == "added with a group to itself" else 1.0
    for early, late in as_workers(3, tmp_path, work, strategy=strategy):
        assert early == pytest.approx(-moved * epochs, rel=1e-9)
        assert late == pytest.approx(-moved * (epochs - 1) * slower, rel=1e-9)


@pytest.mark.parametrize("strategy", ["async", "ssp", "groups:size=1"])
def test_a_worker_without_a_batch_of_the_epoch_follows_too(tmp_path: Path, strategy: str) -> None:
    """Where workers run freely, one chunk of samples leaves the others without any."""
    x = torch.ones(3, 1, dtype=torch.float64)

    def work(rank: int) -> float:
        early, late = (nn.Linear(1, 1, bias=False).double() for _ in range(2))
        nn.init.zeros_(late.weight)
        late.requires_grad_(False)
        optimizer = torch.optim.SGD([*early.parameters(), *late.parameters()], lr=0.1)
        run = phalanx.join(nn.ModuleList([early, late]), optimizer)
        for epoch in run.epochs(2):
            late.requires_grad_(epoch == 1)
            for (part,) in run.batches((x,), batch=9):
                run.backward((early(part) + late(part)).mean())
                run.step()
        return float(late.weight)

    assert set(as_workers(3, tmp_path, work, strategy=strategy)) != {0.0}
