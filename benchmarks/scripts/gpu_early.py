"""One process of ``python -m benchmarks gpu --only early``: ``gpu_early.py KIND RANK``.

``phalanx worker`` runs ``early`` and ``late``, python itself ``ddp``. Each worker says that it is a
host of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

import phalanx
from benchmarks.peers.turns import take_turns
from benchmarks.scripts.blocks import blocks_of, torch_blocks
from benchmarks.scripts.gpu_fit import DEVICE, GPU, Transformer
from phalanx.sync.collective.algorithms import ahead
from phalanx.sync.hosts import membership

BATCH, WORDS, WORKERS = 64, 128, 2
"""Samples of each worker, and the length of each."""


class Halved(nn.Module):
    """In bfloat16, as a script does it by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Transformer() if GPU else Transformer(256, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=GPU):
            found: Tensor = self.body(x)
        return found.float()


def data(samples: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(samples)  # the same for all workers
    x = torch.randint(0, 6000, (samples, WORDS), generator=made)
    return x, torch.randint(0, 10, (samples,), generator=made)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def ours(kind: str, rank: int) -> Callable[[int], float]:
    membership.host_id = lambda: f"host-{rank}"
    if kind == "late":
        ahead.WORTHWHILE = sys.maxsize
    model = Halved().to(DEVICE)
    run = phalanx.join(model, make_optimizer(model))
    return blocks_of(run, model, data, WORKERS * BATCH)


def ddp() -> Callable[[int], float]:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Halved().to(DEVICE))
    x, y = data(8 * BATCH)
    rows = x.to(DEVICE), y.to(DEVICE)
    return torch_blocks(model, make_optimizer(model), rows, dist.barrier)


def main() -> None:
    torch.manual_seed(0)
    kind, rank = sys.argv[1], int(sys.argv[2])
    take_turns(ddp() if kind == "ddp" else ours(kind, rank))
    if kind == "ddp":  # destroying the group would wait for ranks that may have ended already
        os._exit(0)


if __name__ == "__main__":
    main()
