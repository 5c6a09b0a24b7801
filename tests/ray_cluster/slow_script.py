"""Trains a small model slowly, by way of a module beside it. Words: epochs, seconds of a step."""

from __future__ import annotations

import sys
import time

import torch
from small_model import batches, make_model
from torch import nn

import phalanx


def main() -> None:
    epochs, pause = int(sys.argv[1]), float(sys.argv[2])
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run = phalanx.join(model, optimizer)
    run.save_best("test_loss")
    x, y = batches()
    (run.folder / f"from-{run.rank}").write_text("mine")
    for _ in run.epochs(epochs):
        for inputs, targets in run.batches((x, y), batch=24):
            time.sleep(pause)
            run.backward(nn.functional.cross_entropy(model(inputs), targets))
            run.step()
        run.log(test_loss=run.evaluate(nn.functional.cross_entropy, (x, y)))
    print("ended well", flush=True)


if __name__ == "__main__":
    main()
