"""One process of ``python -m benchmarks hosts-ahead``: an example's model in blocks.

``phalanx worker hosts_ahead.py -- early|late EXAMPLE WORKERS run|own|clip`` lets gradients go ahead
of their step, or not; ``python hosts_ahead.py ddp|bare …`` is torch DDP, or a loop that agrees with
nobody. ``own``: the loop calls ``loss.backward()``, and not ``run.backward(loss)``; ``clip``: it
limits the norm of the gradient as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

import phalanx
from benchmarks.peers.turns import take_turns
from benchmarks.scripts.blocks import blocks_of, torch_blocks
from benchmarks.scripts.example_at import make_model
from phalanx.sync.collective.algorithms import ahead

BATCH, RATE, CLIP = 128, 0.01, 1.0
LIMIT = timedelta(minutes=10)


def data(samples: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(samples)  # the same for all workers
    x = torch.randn(samples, 1, 28, 28, generator=made)
    return x, torch.randint(0, 10, (samples,), generator=made)


def ours(model: nn.Module, kind: str, loop: str) -> Callable[[int], float]:
    if kind == "late":
        ahead.WORTHWHILE = sys.maxsize
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=RATE))
    clip = CLIP if loop == "clip" else None
    return blocks_of(run, model, data, BATCH, own=loop != "run", clip=clip)


def torchs(model: nn.Module, kind: str, workers: int, loop: str) -> Callable[[int], float]:
    if kind == "ddp":
        dist.init_process_group("gloo", timeout=LIMIT)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    meet = dist.barrier if kind == "ddp" else lambda: None
    clip = CLIP if loop == "clip" else None
    return torch_blocks(model, optimizer, data(8 * (BATCH // workers)), meet, clip)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind, example, workers, loop = sys.argv[1:]
    model = make_model(example)
    alone = kind in ("ddp", "bare")
    take_turns(torchs(model, kind, int(workers), loop) if alone else ours(model, kind, loop))
    if kind == "ddp":  # destroying the group would wait for ranks that may have ended already
        os._exit(0)


if __name__ == "__main__":
    main()
