"""Blocks of steps of a training that goes on: what a worker of a benchmark does in its turn."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from phalanx.train.api.run import Run

Data = tuple[Tensor, Tensor]


def torch_blocks(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: Data,
    meet: Callable[[], object],
    clip: float | None = None,
) -> Callable[[int], float]:
    """The same of a loop in plain torch, or torch DDP: eight batches are taken in turn."""
    loss, (x, y) = nn.CrossEntropyLoss(), rows
    batch = len(x) // 8

    def block(steps: int) -> float:
        meet()
        began = time.perf_counter()
        for step in range(steps):
            mine = slice(step % 8 * batch, (step % 8 + 1) * batch)
            optimizer.zero_grad()
            loss(model(x[mine]), y[mine]).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return block


def blocks_of(
    run: Run,
    model: nn.Module,
    data: Callable[[int], Data],
    batch: int,
    *,
    own: bool = False,
    clip: float | None = None,
) -> Callable[[int], float]:
    """``data(samples)`` are those of a block, whose seconds are counted between barriers."""
    loss, parts = nn.CrossEntropyLoss(), dict[int, Data]()

    def block(steps: int) -> float:
        if steps not in parts:  # the same tensors each time: a new reader is made for new ones
            parts[steps] = data(steps * batch)
        run.engine.barrier()
        began = time.perf_counter()
        for features, targets in run.batches(parts[steps], batch=batch):
            error = loss(model(features), targets)
            if own:
                error.backward()
            else:
                run.backward(error)
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            run.step()
        run.engine.barrier()
        return time.perf_counter() - began

    return block
