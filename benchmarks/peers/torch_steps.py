"""One rank of torch DDP on Gloo, or (``bare``) a loop that agrees with nobody: the MLP, SGD.

Started with torchrun's variables; each rank has its half of the data in its memory.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.peers.turns import BATCH, make_data, take_turns
from benchmarks.step_worker import make_mlp

LIMIT = timedelta(minutes=10)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workers, batch = 2, BATCH // 2
    x, y = (torch.from_numpy(part) for part in make_data(workers))
    model: nn.Module = make_mlp()
    together = sys.argv[1] == "ddp"
    if together:
        dist.init_process_group("gloo", timeout=LIMIT)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.05), nn.CrossEntropyLoss()

    def block(steps: int) -> float:
        order = torch.randperm(len(x))
        if together:
            dist.barrier()
        began = time.perf_counter()
        for step in range(steps):
            mine = order[step * batch : (step + 1) * batch]
            optimizer.zero_grad()
            error = loss(model(x.index_select(0, mine)), y.index_select(0, mine))
            error.backward()
            optimizer.step()
        return time.perf_counter() - began

    take_turns(block)
    # Destroying the group would wait for ranks that may have been ended already.
    os._exit(0)


if __name__ == "__main__":
    main()
