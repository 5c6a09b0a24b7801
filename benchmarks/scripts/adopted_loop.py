"""A plain loop, to be adopted; ``explicit_loop.py`` beside it is the same with Phalanx called."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, SAMPLES = 12, 128, 12_800


def main() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, 784), torch.randint(0, 10, (SAMPLES,)))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model = nn.Sequential(
        nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss, seconds = nn.CrossEntropyLoss(), []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        seconds.append((time.perf_counter() - began) / (SAMPLES / BATCH))
    print("step", statistics.median(seconds[2:]), flush=True)


if __name__ == "__main__":
    main()
