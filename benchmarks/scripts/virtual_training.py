"""Trains a model of the examples on made-up data; notes when its second epoch began and ended.

``virtual_training.py MODEL SAMPLES``: the same samples, batches and gradients as the bare loop of
``benchmarks.virtual``.
"""

from __future__ import annotations

import sys

from torch import nn, optim

import phalanx
from benchmarks.virtual import STAMPS, clocks, made_up_data, make_model


def main() -> None:
    kind, samples = sys.argv[1], int(sys.argv[2])
    x, y = made_up_data(kind, samples)
    model = make_model(kind)
    run = phalanx.join(model, optim.SGD(model.parameters(), lr=0.01))
    loss = nn.CrossEntropyLoss()
    for epoch in run.epochs(2):
        if epoch == 1:
            STAMPS.append(clocks())
        for inputs, targets in run.batches((x, y), batch=128):
            run.backward(loss(model(inputs), targets))
            run.step()
        if epoch == 1:
            STAMPS.append(clocks())


if __name__ == "__main__":
    main()
