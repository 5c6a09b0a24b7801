"""MNIST with one convolution: the job that a study of choosing machines from a pool ran.

    phalanx run examples/mnist_cnn.py --workers 2 --batch 128

SGD at a rate of 0.001, 64 images per worker, 3 epochs. A single machine finishes a model this
small quickly; the study found that spreading it does not pay, and `phalanx compare` shows it.
`-- --rate 0.05` trains it further in these epochs.
"""

from __future__ import annotations

import argparse

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
    from published import load

    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.001)
    rate = parser.parse_args().rate
    train, test = load("mnist")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loss = nn.CrossEntropyLoss()
    phalanx.fit(model, optimizer=optimizer, loss=loss, train=train, test=test, epochs=3, batch=64)


if __name__ == "__main__":
    main()
