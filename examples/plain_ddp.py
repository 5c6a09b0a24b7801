"""A DistributedDataParallel script as people have it; torchrun would start it just the same.

    phalanx run --framework torch examples/plain_ddp.py --pool pool.yaml
    torchrun --nproc-per-node 2 examples/plain_ddp.py

Nothing in it is about Phalanx. Machines may have unequal numbers of processes.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH_PER_WORKER, EPOCHS = 64, 2


def read_idx(name: str, skip: int) -> torch.Tensor:
    home = Path(os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/datasets").expanduser()
    folder = home / "mnist" if (home / "mnist").is_dir() else home
    zipped = folder / f"{name}.gz"
    data = (
        gzip.decompress(zipped.read_bytes()) if zipped.is_file() else (folder / name).read_bytes()
    )
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=skip).copy())


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = read_idx("train-images-idx3-ubyte", 16).view(-1, 784).float() / 255
    y = read_idx("train-labels-idx1-ubyte", 8).long()
    data = TensorDataset(x, y)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH_PER_WORKER, sampler=sampler)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            error = loss(model(images), labels)
            error.backward()
            optimizer.step()
            total += error.item()
        if dist.get_rank() == 0:
            workers = dist.get_world_size()
            print(
                f"epoch {epoch + 1}: loss {total / len(loader):.4f}, {workers} workers", flush=True
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
