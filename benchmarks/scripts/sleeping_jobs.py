"""Jobs whose computing is a sleep, trained in turn: what they take is known, and needs no core.

``--jobs small,large`` chooses; the first worker prints one JSON line for each.
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
"""Seconds of a step, and of each of its samples."""
BATCH, BATCHES, EPOCHS, TIMED = 40, 30, 4, 2


class Sleeper(nn.Module):
    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(FIXED + EACH * len(x))
        return x.mean() * self.weight.mean()


def train(name: str) -> None:
    model = Sleeper(PARAMETERS[name])
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.01))
    data = torch.ones(BATCH * BATCHES, 1)
    began = 0.0
    for epoch in run.epochs(EPOCHS):
        if epoch == EPOCHS - TIMED:  # shares have settled
            began = time.perf_counter()
        for (x,) in run.batches(torch.utils.data.TensorDataset(data), batch=BATCH):
            run.backward(model(x))
            run.step()
    if run.is_first:
        seconds = time.perf_counter() - began
        print(json.dumps({"job": name, "rate": len(data) * TIMED / seconds}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", default=",".join(PARAMETERS))
    for job in parser.parse_args().jobs.split(","):
        train(job)
