"""One rank: steps of the MLP under strategies, under DDP, and without agreement, alternated."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.harness import alternate, give
from phalanx.core.settings import RunSettings
from phalanx.train.api.join import join_with
from phalanx.train.start.environment import Environment, detect

# Long blocks: a free-running worker idles at the end of each.
STEPS, BATCH = int(os.environ.get("BENCH_STEPS", "300")), 128
SAMPLES = STEPS * BATCH


def make_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=1e-3)
    return torch.optim.SGD(model.parameters(), lr=0.05)


def ddp_block(x: Tensor, y: Tensor, rank: int, workers: int, optimizer: str) -> Callable[[], float]:
    model = nn.parallel.DistributedDataParallel(make_mlp())
    chosen, loss = make_optimizer(optimizer, model), nn.CrossEntropyLoss()

    def block() -> float:
        order = torch.randperm(SAMPLES)
        dist.barrier()
        began = time.perf_counter()
        for step in range(STEPS):
            mine = order[step * BATCH : (step + 1) * BATCH][rank::workers]
            chosen.zero_grad()
            error = loss(model(x.index_select(0, mine)), y.index_select(0, mine))
            error.backward()
            chosen.step()
            error.item()
        return (time.perf_counter() - began) / STEPS

    return block


def floor_block(x: Tensor, y: Tensor, rank: int, workers: int) -> Callable[[], float]:
    """The compute floor: forward and backward of this worker's share, and nothing else."""
    model, loss, batch = make_mlp(), nn.CrossEntropyLoss(), BATCH // workers

    def block() -> float:
        order = torch.randperm(SAMPLES)
        began = time.perf_counter()
        for step in range(STEPS):
            mine = order[(step * workers + rank) * batch :][:batch]
            loss(model(x.index_select(0, mine)), y.index_select(0, mine)).backward()
            model.zero_grad()
        return (time.perf_counter() - began) / STEPS

    return block


def phalanx_block(
    x: Tensor, y: Tensor, environment: Environment, strategy: str, optimizer: str
) -> Callable[[], float]:
    model, loss = make_mlp(), nn.CrossEntropyLoss()
    chosen = make_optimizer(optimizer, model)
    settings = RunSettings(strategy=strategy)
    run = join_with(model, chosen, environment=dataclasses.replace(environment, settings=settings))

    def block() -> float:
        run.engine.barrier()
        began = time.perf_counter()
        for features, targets in run.batches((x, y), batch=BATCH):
            run.backward(loss(model(features), targets))
            run.step()
        run.engine.barrier()
        return (time.perf_counter() - began) / STEPS

    return block


def main() -> None:
    rounds, optimizer, strategies = int(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environment = detect()
    x, y = torch.randn(SAMPLES, 784), torch.randint(0, 10, (SAMPLES,))
    blocks = {name: phalanx_block(x, y, environment, name, optimizer) for name in strategies}
    if "--floor" in sys.argv:
        blocks["floor"] = floor_block(x, y, environment.rank, environment.workers)
    if "--ddp" in sys.argv:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{os.environ['BENCH_RENDEZVOUS']}",
            rank=environment.rank,
            world_size=environment.workers,
        )
        blocks["ddp"] = ddp_block(x, y, environment.rank, environment.workers, optimizer)
    give(alternate(blocks, rounds))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
