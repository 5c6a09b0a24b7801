"""One run of ``python -m benchmarks hosts-codecs``: the MLP on MNIST until it is good enough.

The test images are looked at five times per pass over the training images. Only training is
timed: everybody waits before and after each part.
"""

from __future__ import annotations

import sys
import time

import torch
from examples.published import load
from torch import nn

import phalanx
from benchmarks.peers.turns import BATCH, say
from benchmarks.step_worker import make_mlp

PARTS = 5


def main() -> None:
    target, epochs, limit = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (x, y), test = load("mnist")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    parts = [(x[rows], y[rows]) for rows in order.chunk(PARTS)]
    model, loss = nn.Sequential(nn.Flatten(), make_mlp()), nn.CrossEntropyLoss()
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    seconds = 0.0
    for part in run.epochs(epochs * PARTS):
        run.engine.barrier()
        began = time.perf_counter()
        for features, targets in run.batches(parts[part % PARTS], batch=BATCH):
            run.backward(loss(model(features), targets))
            run.step()
        run.engine.barrier()
        seconds += time.perf_counter() - began
        accuracy = run.evaluate(phalanx.accuracy, test)
        if run.is_first:
            say("part", repr(seconds), repr(accuracy))
            if accuracy >= target or seconds > limit:
                run.stop()
        run.engine.barrier()
    if run.is_first:
        say("end")


if __name__ == "__main__":
    main()
