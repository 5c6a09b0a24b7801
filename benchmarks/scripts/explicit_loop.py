"""The loop of ``adopted_loop.py``, with Phalanx called."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx

EPOCHS, BATCH, SAMPLES = 12, 128, 12_800


def main() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, 784), torch.randint(0, 10, (SAMPLES,)))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model = nn.Sequential(
        nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    run = phalanx.join(model, optimizer)
    loss, seconds = nn.CrossEntropyLoss(), []
    for _ in run.epochs(EPOCHS):
        began = time.perf_counter()
        for x, y in run.batches(loader):
            run.backward(loss(model(x), y))
            run.step()
        seconds.append((time.perf_counter() - began) / (SAMPLES / BATCH))
    print("step", statistics.median(seconds[2:]), flush=True)


if __name__ == "__main__":
    main()
