"""What ``phalanx demo`` trains: a small convolutional network that reads handwritten digits.

It is an ordinary script: plain ``python digits.py`` trains it alone.
"""

from __future__ import annotations

import torch
from torch import nn

import phalanx


def main() -> None:
    torch.manual_seed(0)
    train, test = phalanx.data.load("digits")
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    phalanx.fit(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loss=nn.functional.cross_entropy,
        train=train,
        test=test,
        epochs=10,
        batch=128,
    )


if __name__ == "__main__":
    main()
