"""What ``phalanx demo`` trains: a small network that reads handwritten digits.

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
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    phalanx.fit(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        loss=nn.functional.cross_entropy,
        train=train,
        test=test,
        epochs=10,
        batch=32,
    )


if __name__ == "__main__":
    main()
