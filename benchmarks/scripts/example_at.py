"""An example's model and data at another learning rate, without momentum.

``phalanx run benchmarks/scripts/example_at.py -- mnist_cnn mnist 0.05``
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch
from examples.published import load
from torch import nn

import phalanx

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def make_model(example: str) -> nn.Module:
    model: nn.Module = runpy.run_path(str(EXAMPLES / f"{example}.py"))["make_model"]()
    return model


def main() -> None:
    example, data, rate = sys.argv[1:]
    train, test = load(data)
    model = make_model(example)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(rate))
    loss = nn.CrossEntropyLoss()
    phalanx.fit(model, optimizer=optimizer, loss=loss, train=train, test=test, epochs=3, batch=256)


if __name__ == "__main__":
    main()
