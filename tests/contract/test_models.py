"""Models that are not the ordinary case, under every strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ranks import as_ranks
from strategy_cases import EVERY, NAMES
from torch import Tensor, nn
from training import Norm

import phalanx
from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings

BATCH = 13  # divides neither the samples nor among the workers
X, Y = torch.randn(72, 6), torch.randint(0, 3, (72,))


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6, bias=False)
        self.b = nn.Linear(6, 6, bias=False)
        self.b.weight = self.a.weight
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.b(torch.tanh(self.a(x)))))


class _SometimesUnused(nn.Module):
    """The second branch is used for some batches only."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.a(x)
        if self.calls % 3 == 0:
            hidden = hidden + self.b(x)
        return self.out(torch.tanh(hidden))


class _TwoTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)).double())


class _OneNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3] * self.scale


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].weight.requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": _Tied,
    "sometimes-unused": _SometimesUnused,
    "two-types": _TwoTypes,
    "one-number": _OneNumber,
    "frozen": _frozen,
    "batch-norm": lambda: nn.Sequential(nn.Linear(6, 5), Norm(5), nn.Linear(5, 3)),
    "channels-last": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(8, 3)
    ).to(memory_format=torch.channels_last),
}

VARIED = ("sometimes-unused", "two-types")
"""Tried with every option and codec; the others, in the quick suite, with plain strategies."""


def _train(
    folder: Path, workers: int, strategy: str, make: Callable[[], nn.Module]
) -> list[nn.Module]:
    models = []
    for rank in range(workers):
        torch.manual_seed(rank)  # each worker builds other weights: the first one's count
        models.append(make())

    def work(rank: int) -> nn.Module:
        model = models[rank]
        made = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
        loss = nn.functional.cross_entropy
        phalanx.fit(model, optimizer=made, loss=loss, train=(X, Y), epochs=2, batch=BATCH)
        return model

    return as_ranks(workers, folder, work, RunSettings(strategy=strategy))


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        pytest.param(kind, spec, marks=() if spec in NAMES or kind in VARIED else pytest.mark.slow)
        for kind in MODELS
        for spec in (*EVERY, "switch:at=0.5")
    ],
)
def test_workers_end_with_one_model_that_learnt(tmp_path: Path, kind: str, strategy: str) -> None:
    models = _train(tmp_path, 3, strategy, MODELS[kind])
    first = models[0].state_dict()
    for model in models[1:]:
        for name, value in model.state_dict().items():
            assert torch.equal(value, first[name]), name
    torch.manual_seed(0)
    start = MODELS[kind]().state_dict()
    moved = [n for n, v in first.items() if not torch.equal(v, start[n])]
    assert moved
    if kind == "frozen":
        assert torch.equal(first["0.weight"], start["0.weight"])
    if kind == "tied":
        assert models[1].a.weight.data_ptr() == models[1].b.weight.data_ptr()


def test_a_parameter_that_only_one_worker_used_is_updated(tmp_path: Path) -> None:
    def work(rank: int) -> list[Tensor]:
        one, two = nn.Linear(6, 3), nn.Linear(6, 3)
        both = nn.ModuleList([one, two])
        run = phalanx.join(both, torch.optim.Adam(both.parameters(), lr=0.1))
        before = two.weight.detach().clone()
        for _ in run.epochs(1):
            for x, y in run.batches((X, Y), batch=36):
                outputs = one(x) + two(x) if rank == 1 else one(x)
                run.backward(nn.functional.cross_entropy(outputs, y))
                run.step()
        return [before, two.weight.detach()]

    for before, after in as_ranks(2, tmp_path, work, RunSettings(strategy="allreduce")):
        assert not torch.equal(before, after)


@pytest.mark.parametrize("strategy", [*NAMES, "switch:at=0.5"])
def test_batch_norm_statistics_are_those_of_all_samples(tmp_path: Path, strategy: str) -> None:
    """With momentum None the running mean is the plain average over the batches seen."""
    x = torch.randn(60, 4) * 3 + torch.arange(4)

    def work(rank: int) -> nn.Module:
        model = nn.Sequential(nn.BatchNorm1d(4, affine=False, momentum=None), nn.Linear(4, 3))
        made = torch.optim.SGD(model.parameters(), lr=0.0)
        loss = nn.functional.cross_entropy
        phalanx.fit(model, optimizer=made, loss=loss, train=(x, Y[:60]), epochs=1, batch=12)
        return model

    for model in as_ranks(2, tmp_path, work, RunSettings(strategy=strategy)):
        assert torch.allclose(model[0].running_mean, x.mean(0), atol=0.05)


def test_an_optimizer_that_is_not_elementwise_is_refused_by_the_store(tmp_path: Path) -> None:
    class Mine(torch.optim.SGD):
        pass

    def work(rank: int) -> None:
        model = nn.Linear(6, 3)
        phalanx.join(model, Mine(model.parameters(), lr=0.1))

    with pytest.raises(InputError, match="Mine cannot run in the store"):
        as_ranks(2, tmp_path, work, RunSettings(strategy="async"))


def test_a_sparse_gradient_is_refused(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        model = nn.EmbeddingBag(10, 3, sparse=True, mode="sum")
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        ids = torch.arange(48).view(24, 2) % 10
        loss = nn.functional.cross_entropy
        phalanx.fit(model, optimizer=made, loss=loss, train=(ids, Y[:24]), epochs=1, batch=8)

    with pytest.raises(InputError, match="sparse"):
        as_ranks(2, tmp_path, work, RunSettings(strategy="allreduce"))


def test_an_optimizer_that_needs_a_closure_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    with pytest.raises(InputError, match="LBFGS evaluates the loss several times"):
        phalanx.join(model, torch.optim.LBFGS(model.parameters()))


def test_metrics_may_not_take_the_names_of_fits_own(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    loss = nn.functional.cross_entropy
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="metrics has 'loss'"):
        phalanx.fit(
            model, optimizer=optimizer, loss=loss, train=(X, Y), metrics={"loss": phalanx.accuracy}
        )
