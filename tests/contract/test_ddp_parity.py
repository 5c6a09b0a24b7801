"""A model with batch norm ends with the parameters that torch DDP gives on the same shards."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ranks import as_ranks
from torch import Tensor, nn

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.data.reader import order

SAMPLES, BATCH, EPOCHS, SEED = 48, 8, 2, 4


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (SAMPLES,), generator=generator)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _ddp(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    inner, (x, y) = _model(), _data()
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = _optimizer(inner)
    for epoch in range(EPOCHS):
        positions = order(SAMPLES, SEED, epoch)
        for start in range(0, SAMPLES, BATCH):
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
    models = [_model() for _ in range(2)]

    def work(rank: int) -> None:
        loss = nn.functional.cross_entropy
        optimizer = _optimizer(models[rank])
        phalanx.fit(
            models[rank], optimizer=optimizer, loss=loss, train=_data(), epochs=EPOCHS, batch=BATCH
        )

    as_ranks(2, tmp_path / "run", work, RunSettings(strategy="allreduce", seed=SEED))
    for name, value in models[1].named_parameters():
        difference = (value - expected[name]).norm() / expected[name].norm()
        assert difference <= 1e-12, f"{name}: {float(difference):.1e}"
