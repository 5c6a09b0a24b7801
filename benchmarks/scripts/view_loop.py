"""A plain loop over a ``DataLoader`` with a chosen model; prints seconds a step, and of a test.

Started by ``torchrun`` it is the same loop with ``DistributedDataParallel``, each of whose
processes tests the model on all samples.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def block(inside: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
    )


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = block(width, width), block(width, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.second(self.first(x))
        return found


def model_of(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A model, and the shape of one sample."""
    if name == "mlp":
        layers = [nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(100, 10)), (784,)
    if name == "cnn":
        first = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
        last = [nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10)]
        return nn.Sequential(*first, *last), (1, 28, 28)
    body = [block(3, 16), Residual(16), nn.MaxPool2d(2), block(16, 32), Residual(32)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*body, *head), (3, 32, 32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["mlp", "cnn", "resnet"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=6)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    model, shape = model_of(chosen.model)
    samples = 128 * chosen.steps
    data = TensorDataset(torch.randn(samples, *shape), torch.randint(0, 10, (samples,)))
    loader = DataLoader(data, batch_size=128, shuffle=True)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        part = 128 // torch.distributed.get_world_size()
        loader = DataLoader(data, batch_size=part, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss, seconds, evaluated = nn.CrossEntropyLoss(), [], []
    for _ in range(chosen.epochs):
        model.train()
        began = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        seconds.append((time.perf_counter() - began) / chosen.steps)
        model.eval()
        began = time.perf_counter()
        with torch.no_grad():
            for x, _ in DataLoader(data, batch_size=512):
                model(x)
        evaluated.append(time.perf_counter() - began)
    print("step", statistics.median(seconds[1:]), flush=True)
    print("evaluation", statistics.median(evaluated[1:]), flush=True)


if __name__ == "__main__":
    main()
