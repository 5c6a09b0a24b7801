"""What both strategies train while a straggler comes and goes: an example's CNN.

The second worker enters the control group that the benchmark opens and closes.
"""

from __future__ import annotations

import argparse
import os

import torch
from examples.published import load
from torch import nn

import phalanx
from benchmarks.cgroup import VARIABLE, join_named_group
from benchmarks.scripts.example_at import make_model
from phalanx.core.settings import RANK


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--no-test", action="store_true", help="nothing but steps")
    chosen = parser.parse_args()
    (x, y), test = load("mnist")
    if os.environ.get(RANK) == "1" and VARIABLE in os.environ:
        join_named_group()
    model = make_model("mnist_cnn")
    phalanx.fit(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        loss=nn.CrossEntropyLoss(),
        train=(x[: chosen.samples], y[: chosen.samples]),
        test=None if chosen.no_test else test,
        epochs=3,
        batch=256,
    )


if __name__ == "__main__":
    main()
