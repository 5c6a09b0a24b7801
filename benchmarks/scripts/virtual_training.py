"""Trains a model of the examples on made-up data; says how long its second epoch took.

``virtual_training.py MODEL SAMPLES``: the same samples, batches and gradients as the bare loop of
``benchmarks.virtual``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from torch import nn, optim

import phalanx
from benchmarks.virtual import clocks, made_up_data, make_model, since


def main() -> None:
    kind, samples = sys.argv[1], int(sys.argv[2])
    x, y = made_up_data(kind, samples)
    model = make_model(kind)
    run = phalanx.join(model, optim.SGD(model.parameters(), lr=0.01))
    loss, began = nn.CrossEntropyLoss(), [(0.0, 0.0)] * 3
    for epoch in run.epochs(2):
        began[epoch] = clocks()
        for inputs, targets in run.batches((x, y), batch=128):
            run.backward(loss(model(inputs), targets))
            run.step()
    began[2] = clocks()
    if run.rank == 0:
        Path(os.environ["VIRTUAL_SECONDS"]).write_text(json.dumps(since(began[1], began[2])))


if __name__ == "__main__":
    main()
