"""Handwritten digits, 8×8 pixels, that come with Phalanx: the first thing to try.

phalanx run examples/digits.py --workers 2
phalanx compare examples/digits.py --workers 2 --strategies allreduce,async,switch:at=0.5
"""

from __future__ import annotations

import torch
from torch import nn

import phalanx


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main() -> None:
    train, test = phalanx.data.load("digits")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    phalanx.fit(
        model,
        optimizer=optimizer,
        loss=nn.CrossEntropyLoss(),
        train=train,
        test=test,
        epochs=8,
        batch=64,
        scheduler=torch.optim.lr_scheduler.MultiStepLR(optimizer, [6]),
    )


if __name__ == "__main__":
    main()
