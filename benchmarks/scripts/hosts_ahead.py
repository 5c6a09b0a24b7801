"""One process of ``python -m benchmarks hosts-ahead``: an example's model in blocks.

``phalanx worker hosts_ahead.py -- EXAMPLE early|late`` lets gradients go ahead of their step, or
not; ``python hosts_ahead.py EXAMPLE ddp|bare`` is torch DDP, or a loop that agrees with nobody.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

import phalanx
from benchmarks.peers.turns import take_turns
from benchmarks.scripts.blocks import blocks_of
from benchmarks.scripts.example_at import make_model
from phalanx.sync.collective.algorithms import ahead

BATCH, WORKERS, RATE = 128, 2, 0.01
LIMIT = timedelta(minutes=10)


def data(samples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 1, 28, 28), torch.randint(0, 10, (samples,))


def ours(model: nn.Module, kind: str) -> Callable[[int], float]:
    if kind == "late":
        ahead.WORTHWHILE = sys.maxsize
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=RATE))
    return blocks_of(run, model, data, BATCH)


def torchs(model: nn.Module, kind: str) -> Callable[[int], float]:
    if kind == "ddp":
        dist.init_process_group("gloo", timeout=LIMIT)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=RATE), nn.CrossEntropyLoss()
    batch = BATCH // WORKERS
    x, y = data(8 * batch)

    def block(steps: int) -> float:
        if kind == "ddp":
            dist.barrier()
        began = time.perf_counter()
        for step in range(steps):
            mine = slice(step % 8 * batch, (step % 8 + 1) * batch)
            optimizer.zero_grad()
            loss(model(x[mine]), y[mine]).backward()
            optimizer.step()
        return time.perf_counter() - began

    return block


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    example, kind = sys.argv[1:]
    make = torchs if kind in ("ddp", "bare") else ours
    take_turns(make(make_model(example), kind))
    if kind == "ddp":  # destroying the group would wait for ranks that may have ended already
        os._exit(0)


if __name__ == "__main__":
    main()
