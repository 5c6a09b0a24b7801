"""MNIST with one convolution: the job that a study of choosing machines from a pool ran.

    phalanx run examples/mnist_cnn.py --workers 2 --batch-per-worker 64

SGD at a rate of 0.001, 64 images per worker, 3 epochs. A single machine finishes a model this
small quickly; the study found that spreading it does not pay, and `phalanx compare` shows it.
"""

from __future__ import annotations

import torch
from torch import nn

import phalanx


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 13 * 13, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main() -> None:
    train, test = phalanx.data.load("mnist")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loss = nn.CrossEntropyLoss()
    phalanx.fit(model, optimizer=optimizer, loss=loss, train=train, test=test, epochs=3, batch=64)


if __name__ == "__main__":
    main()
