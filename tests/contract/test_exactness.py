"""Any number of workers under ``allreduce`` ends where one process ends, and with batch norm where
torch's own DistributedDataParallel ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ranks import as_ranks
from torch import Tensor, nn

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.data.reader import order

SAMPLES = 97  # the last batch has one sample: all workers but one have none of it
Optimizers = dict[str, Callable[[nn.Module], torch.optim.Optimizer]]


def _two_groups(model: nn.Module) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 3e-3}]
    return torch.optim.AdamW(groups, lr=1e-2)


OPTIMIZERS: Optimizers = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    "dampened": lambda m: torch.optim.SGD(
        m.parameters(), lr=0.05, momentum=0.9, dampening=0.3, weight_decay=1e-3
    ),
    "adamw-two-groups": _two_groups,
    "adam-amsgrad": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, amsgrad=True),
    "adadelta": lambda m: torch.optim.Adadelta(m.parameters()),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.5),
}


def _model(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 17), nn.Tanh(), nn.Linear(17, 5)).to(dtype)


def _data(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, 12, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 5, (SAMPLES,), generator=generator)


def _trained(
    workers: int, folder: Path, dtype: torch.dtype, optimizer: str, **options: Any
) -> tuple[list[dict[str, Tensor]], list[dict[str, Any]]]:
    models = [_model(dtype) for _ in range(workers)]
    optimizers = [OPTIMIZERS[optimizer](m) for m in models]
    gamma = options.pop("gamma", None)

    def work(rank: int) -> None:
        scheduler = gamma and torch.optim.lr_scheduler.ExponentialLR(optimizers[rank], gamma)
        phalanx.fit(
            models[rank],
            optimizer=optimizers[rank],
            loss=nn.functional.cross_entropy,
            train=_data(dtype),
            epochs=2,
            batch=16,
            scheduler=scheduler,
            **options,
        )

    strategy = "allreduce" if workers > 1 else "single"
    as_ranks(workers, folder, work, RunSettings(strategy=strategy, seed=11))
    return [m.state_dict() for m in models], [o.state_dict() for o in optimizers]


def _assert_same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float) -> None:
    for name, expected in a.items():
        difference = (expected - b[name]).norm() / expected.norm()
        assert difference <= tolerance, f"{name}: {float(difference):.1e}"


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64], ids=str
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ends_where_one_process_ends(
    tmp_path: Path, workers: int, dtype: torch.dtype, optimizer: str
) -> None:
    alone, _ = _trained(1, tmp_path / "one", dtype, optimizer)
    together, _ = _trained(workers, tmp_path / "many", dtype, optimizer)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for state in together:
        _assert_same(alone[0], state, tolerance)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"gamma": 0.5},
        {"clip": 0.05},
        {"accumulate": 3},
        {"accumulate": 7},
        {"gamma": 0.5, "clip": 0.05, "accumulate": 2},
    ],
    ids=["scheduler", "clip", "accumulate", "over the end of a pass", "all"],
)
def test_schedules_clipping_and_accumulation_are_exact(
    tmp_path: Path, workers: int, options: dict[str, Any]
) -> None:
    alone, _ = _trained(1, tmp_path / "one", torch.float64, "momentum", **options)
    together, _ = _trained(workers, tmp_path / "many", torch.float64, "momentum", **options)
    plain, _ = _trained(1, tmp_path / "plain", torch.float64, "momentum")
    _assert_same(alone[0], together[-1], 1e-12)
    assert not torch.allclose(alone[0]["0.weight"], plain[0]["0.weight"], rtol=1e-6)


def test_an_optimizer_that_is_not_elementwise_runs_under_allreduce(tmp_path: Path) -> None:
    class Normalised(torch.optim.SGD):
        """Divides each gradient by its norm: not element-wise."""

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad = p.grad / p.grad.norm()
            return super().step(closure)

    OPTIMIZERS["normalised"] = lambda m: Normalised(m.parameters(), lr=0.05, momentum=0.9)
    alone, _ = _trained(1, tmp_path / "one", torch.float64, "normalised")
    together, _ = _trained(3, tmp_path / "many", torch.float64, "normalised")
    for state in together:
        _assert_same(alone[0], state, 1e-12)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("strategy", ["allreduce", "bsp", "groups:size=2"])
@pytest.mark.parametrize("codec", ["topk:ratio=0.1", "powersgd:rank=1"])
def test_what_was_sent_and_what_is_kept_add_up_to_all_gradients(
    tmp_path: Path, strategy: str, codec: str, accumulate: int
) -> None:
    """Also of a worker that has no samples in the last batch, and offers in vain."""

    def work(rank: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(rank)
        model = nn.Linear(12, 5, bias=False)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.5))
        sums = _Sums(run.engine._phases.current.strategies[0], model.weight)  # type: ignore[attr-defined]
        x, y = (part[:9] for part in _data(torch.float32))
        for _ in run.epochs(6):
            for a, b in run.batches((x, y), batch=8):
                run.backward(nn.functional.cross_entropy(model(a), b))
                if run.pending == accumulate:
                    run.step()
        return sums.given, sums.sent + sums.kept()

    chosen = RunSettings(strategy=f"{strategy}+{codec}")
    for given, accounted in as_ranks(2, tmp_path, work, chosen):
        assert bool(given.any())
        assert torch.allclose(given, accounted, atol=1e-5)


class _Sums:
    """Over the steps that a strategy takes: the gradients it was given, and what it sent."""

    def __init__(self, strategy: Any, weight: Tensor) -> None:
        self._strategy, self._weight = strategy, weight
        sender = strategy._round.sender if hasattr(strategy, "_round") else strategy._reducer.sender
        layout, self._streams = strategy._replica.layouts[0], sender._streams
        self._bounds = [layout.bounds(int(name.split(".")[1])) for name, _, _ in self._streams]
        self._offered = [torch.empty(0)] * 2
        self.given, self.sent = torch.zeros(weight.numel()), torch.zeros(weight.numel())
        offer, follow = strategy.offers.offer, strategy.follow
        strategy.offers.offer = lambda *given: self._look(offer, *given)
        strategy.follow = lambda: self._add(follow)

    def _look(self, offer: Callable[..., None], *given: Any) -> None:
        gradient = self._weight.grad
        flat = torch.zeros_like(self.given) if gradient is None else gradient.flatten().clone()
        flat *= self._strategy._replica.scale.value
        offer(*given)
        self._offered = [self._joined([flat[low:high] for low, high in self._bounds])]
        self._offered.append(self._joined([tensor for _, tensor, _ in self._streams]))

    def _add(self, follow: Callable[[], Any]) -> Any:
        self.given += self._offered[0]
        self.sent += self._offered[1]
        return follow()

    def kept(self) -> Tensor:
        state = self._strategy.export_private()
        return self._joined([state[f"wire.{name}.residual"] for name, _, _ in self._streams])

    def _joined(self, parts: list[Tensor]) -> Tensor:
        whole = torch.zeros_like(self.given)
        for (low, high), part in zip(self._bounds, parts, strict=True):
            whole[low:high] = part
        return whole


# -- batch norm, as torch has it with the same shares ---------------------------------------

ROWS, BATCH, EPOCHS, SEED = 48, 8, 2, 4


def _normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def _rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (ROWS,), generator=generator)


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _ddp(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    inner, (x, y) = _normed(), _rows()
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = _momentum(inner)
    for epoch in range(EPOCHS):
        positions = order(ROWS, SEED, epoch)
        for start in range(0, ROWS, BATCH):
            half = BATCH // 2
            mine = positions[start + rank * half : start + (rank + 1) * half]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
            optimizer.step()
    if rank == 0:
        torch.save(dict(inner.named_parameters()), f"{folder}/ddp.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_batch_norm_models_end_where_ddp_ends(tmp_path: Path) -> None:
    # Not spawned: importing torch again would take longer than all the rest.
    mp.start_processes(_ddp, (str(tmp_path),), nprocs=2, start_method="fork")
    expected = torch.load(tmp_path / "ddp.pt", weights_only=True)
    models = [_normed() for _ in range(2)]

    def work(rank: int) -> None:
        loss = nn.functional.cross_entropy
        optimizer = _momentum(models[rank])
        phalanx.fit(
            models[rank], optimizer=optimizer, loss=loss, train=_rows(), epochs=EPOCHS, batch=BATCH
        )

    as_ranks(2, tmp_path / "run", work, RunSettings(strategy="allreduce", seed=SEED))
    for name, value in models[1].named_parameters():
        difference = (value - expected[name]).norm() / expected[name].norm()
        assert difference <= 1e-12, f"{name}: {float(difference):.1e}"
