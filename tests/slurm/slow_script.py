"""Trains a small model slowly, and keeps its best. Words: epochs, seconds of a step."""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

import phalanx


def main() -> None:
    epochs, pause = int(sys.argv[1]), float(sys.argv[2])
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run = phalanx.join(model, optimizer)
    run.save_best("test_loss")
    x = torch.randn(240, 16, generator=torch.Generator().manual_seed(2))
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    for _ in run.epochs(epochs):
        for inputs, targets in run.batches((x, y), batch=24):
            time.sleep(pause)
            run.backward(nn.functional.cross_entropy(model(inputs), targets))
            run.step()
        run.log(test_loss=run.evaluate(nn.functional.cross_entropy, (x, y)))
    print("ended well", flush=True)


if __name__ == "__main__":
    main()
