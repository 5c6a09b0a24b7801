"""Jobs trained in turn, each timed once its shares have settled.

``small`` and ``large`` sleep instead of computing: what they take is known, and needs no core.
``mlp`` and ``cnn`` compute. ``--jobs small,large`` chooses; the first worker prints one JSON line
for each.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import Tensor, nn

import phalanx

PARAMETERS = {"small": 250_000, "large": 500_000}
FIXED, EACH = 5e-3, 1e-3
"""Seconds of a sleeping step, and of each of its samples."""
BATCHES, EPOCHS, TIMED = 30, 12, 4
BATCH = {"small": 40, "large": 40, "mlp": 256, "cnn": 64}


class Sleeper(nn.Module):
    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(FIXED + EACH * len(x))
        return x.mean() * self.weight.mean()


def make_model(name: str) -> nn.Module:
    if name in PARAMETERS:
        return Sleeper(PARAMETERS[name])
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 10),
        )  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def train(name: str, epochs: int) -> None:
    torch.manual_seed(0)
    model, batch = make_model(name), BATCH[name]
    sleeps = name in PARAMETERS
    data = torch.ones(batch * BATCHES, 1) if sleeps else torch.randn(batch * BATCHES, 1, 28, 28)
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.01))
    began = 0.0
    for epoch in run.epochs(epochs):
        if epoch == epochs - TIMED:
            began = time.perf_counter()
        for (x,) in run.batches(torch.utils.data.TensorDataset(data), batch=batch):
            found = model(x)
            run.backward(found if sleeps else found.square().mean())
            run.step()
    if run.is_first:
        seconds = time.perf_counter() - began
        print(json.dumps({"job": name, "rate": len(data) * TIMED / seconds}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", default=",".join(PARAMETERS))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    chosen = parser.parse_args()
    for job in chosen.jobs.split(","):
        train(job, chosen.epochs)
