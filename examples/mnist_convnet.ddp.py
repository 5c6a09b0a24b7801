"""The model of mnist_convnet.py under DistributedDataParallel: a peer to compare with.

    phalanx compare --systems phalanx,torch-ddp examples/mnist_convnet.py --workers 2
    torchrun --nproc-per-node 2 examples/mnist_convnet.ddp.py

It knows nothing of Phalanx but the lines that it prints for the report, and the variables
PHALANX_EPOCHS, PHALANX_BATCH, PHALANX_SEED and PHALANX_DATA, which it may be given.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn

EPOCHS = int(os.environ.get("PHALANX_EPOCHS", "30"))
BATCH = int(os.environ.get("PHALANX_BATCH", "96"))  # of all workers together
SEED = int(os.environ.get("PHALANX_SEED", "0"))


def read_idx(name: str, skip: int) -> Tensor:
    home = Path(os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/datasets").expanduser()
    folder = home / "mnist" if (home / "mnist").is_dir() else home
    plain, zipped = folder / name, folder / f"{name}.gz"
    data = plain.read_bytes() if plain.is_file() else gzip.decompress(zipped.read_bytes())
    return torch.from_numpy(numpy.frombuffer(data, numpy.uint8)[skip:].copy())


def read_mnist(part: str) -> tuple[Tensor, Tensor]:
    return read_idx(f"{part}-images-idx3-ubyte", 16), read_idx(f"{part}-labels-idx1-ubyte", 8)


def prepare(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(-1, 1, 28, 28).float() / 255, y.long()


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def tell(**figures: float | int) -> None:
    if dist.get_rank() == 0:
        print("phalanx-figures", json.dumps(figures), flush=True)


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, epoch: int
) -> float:
    """One pass over all samples, each of them on one worker; the mean loss of this one."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(SEED + epoch))
    mine = order[rank : len(order) - len(order) % workers : workers]
    total = 0.0
    for part in mine.split(BATCH // workers):
        optimizer.zero_grad()
        error = nn.functional.cross_entropy(model(x[part]), y[part])
        error.backward()
        optimizer.step()
        total += error.item() * len(part)
    return total / len(mine)


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    model.eval()
    outputs = torch.cat([model(part) for part in x.split(500)])
    model.train()
    right = (outputs.argmax(1) == y).float().mean().item()
    return {
        "test_loss": nn.functional.cross_entropy(outputs, y).item(),
        "test_accuracy": right,
    }


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    began = time.perf_counter()
    train, test = read_mnist("train"), read_mnist("t10k")
    read = time.perf_counter()
    (x, y), test = prepare(*train), prepare(*test)
    prepared = time.perf_counter()
    model = make_model()
    torch.manual_seed(SEED + dist.get_rank())  # dropout of its own on each worker
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adadelta(parallel.parameters())
    count = sum(parameter.numel() for parameter in model.parameters())
    workers = dist.get_world_size()
    tell(parameters=count, batch=BATCH, workers=workers, samples=len(y), epochs=EPOCHS,
         read_seconds=read - began, prepare_seconds=prepared - read)  # fmt: skip
    for epoch in range(EPOCHS):
        dist.barrier()
        began = time.perf_counter()
        loss = train_epoch(parallel, optimizer, x, y, epoch)
        dist.barrier()
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        figures = evaluate(model, *test) if dist.get_rank() == 0 else {}
        spent = time.perf_counter() - began
        tell(epoch=epoch, seconds=seconds, samples=len(y), train_loss=loss,
             evaluate_seconds=spent, **figures)  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
