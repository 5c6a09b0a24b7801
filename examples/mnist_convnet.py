"""MNIST with two convolutions and dropout: experiment 1 of a study of TensorFlow and Horovod.

    phalanx run examples/mnist_convnet.py --workers 2
    phalanx compare examples/mnist_convnet.py --workers 2 --batch 96,192,384,768,1536

Adadelta, 30 epochs; the study varied the global batch from 96 to 1,536.
"""

from __future__ import annotations

import torch
from torch import nn

import phalanx


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def main() -> None:
    from published import load

    train, test = load("mnist")
    model = make_model()
    optimizer = torch.optim.Adadelta(model.parameters())
    loss = nn.CrossEntropyLoss()
    phalanx.fit(model, optimizer=optimizer, loss=loss, train=train, test=test, epochs=30, batch=96)


if __name__ == "__main__":
    main()
