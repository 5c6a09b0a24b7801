"""Trains a small model until somebody makes the file that the first word names, or for long.

Says "steps N" when it has begun, and at the end the loss. Words: that file, epochs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import phalanx


def main() -> None:
    enough, epochs = Path(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10))
    x, y = torch.randn(512, 64), torch.randint(0, 10, (512,))
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    steps, total = 0, 0.0
    for _ in run.epochs(epochs):
        for batch, target in run.batches((x, y), batch=64):
            loss = nn.functional.cross_entropy(model(batch), target)
            run.backward(loss)
            run.step()
            steps += 1
            if steps == 10:
                print("has begun", flush=True)
        total = run.evaluate(nn.functional.cross_entropy, (x, y))
        if run.is_first and enough.exists():
            run.stop()
    print(f"loss {total!r}", flush=True)


if __name__ == "__main__":
    main()
