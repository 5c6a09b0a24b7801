"""``fit`` with one worker against a bare loop that does the same, alternated in one process."""

from __future__ import annotations

import time

import torch
from torch import nn

import phalanx
from benchmarks.harness import report, spread
from benchmarks.step_worker import make_mlp

SAMPLES, BATCH, BLOCKS = 6400, 128, 20


def main() -> None:
    torch.set_num_threads(1)
    x, y = torch.randn(SAMPLES, 784), torch.randint(0, 10, (SAMPLES,))
    ratios, ours, bare = [], [], []
    for block in range(BLOCKS + 1):
        order = (_fit, _bare) if block % 2 == 0 else (_bare, _fit)
        seconds = {call: call(x, y) for call in order}
        if block:  # the first one warms up
            ours.append(seconds[_fit] * 1e3)
            bare.append(seconds[_bare] * 1e3)
            ratios.append(seconds[_fit] / seconds[_bare])
    report("fit, one worker, ms a step", **spread(ours))
    report("bare loop, ms a step", **spread(bare))
    report("fit / bare loop", bar="<= 1.05", **spread(ratios))


def _bare(x: torch.Tensor, y: torch.Tensor) -> float:
    model, loss = make_mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    began, total, correct = time.perf_counter(), 0.0, torch.zeros(())
    order = torch.randperm(SAMPLES)
    for start in range(0, SAMPLES, BATCH):
        chosen = order[start : start + BATCH]
        features, targets = x[chosen], y[chosen]
        optimizer.zero_grad()
        outputs = model(features)
        error = loss(outputs, targets)
        error.backward()
        optimizer.step()
        total += error.item() * len(chosen)
        correct += (outputs.argmax(1) == targets).sum()
    return (time.perf_counter() - began) / (SAMPLES / BATCH)


def _fit(x: torch.Tensor, y: torch.Tensor) -> float:
    model = make_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    began = time.perf_counter()
    phalanx.fit(
        model, optimizer=optimizer, loss=nn.CrossEntropyLoss(), train=(x, y), epochs=1, batch=BATCH
    )
    return (time.perf_counter() - began) / (SAMPLES / BATCH)


if __name__ == "__main__":
    main()
