"""One worker of ``python -m benchmarks hosts-steps``: the MLP, in blocks, by its own loop."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

import phalanx
from benchmarks.peers.turns import BATCH, make_data, take_turns
from benchmarks.step_worker import make_mlp


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = (torch.from_numpy(part) for part in make_data())
    model, loss = make_mlp(), nn.CrossEntropyLoss()
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.05))
    parts: dict[int, tuple[Tensor, Tensor]] = {}

    def block(steps: int) -> float:
        # The same tensors each time: a new reader is made for new ones.
        part = parts.setdefault(steps, (x[: steps * BATCH], y[: steps * BATCH]))
        run.engine.barrier()
        began = time.perf_counter()
        for features, targets in run.batches(part, batch=BATCH):
            run.backward(loss(model(features), targets))
            run.step()
        run.engine.barrier()
        return time.perf_counter() - began

    take_turns(block)


if __name__ == "__main__":
    main()
