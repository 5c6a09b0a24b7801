"""MNIST with two hidden layers (784-300-100-10), as in a study of parameter servers (2022).

    phalanx run examples/mnist_mlp.py --workers 2
    phalanx compare examples/mnist_mlp.py --workers 2 --strategies allreduce,async --batch 128,256

54,000 images train, 6,000 validate, 10,000 test; 25 epochs at a global batch of 128 (or 256).
Published test accuracy: 0.9804 with parameter servers, 0.9804 with all-reduce.
"""

from __future__ import annotations

import torch
from torch import nn

import phalanx


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(28 * 28, 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def main() -> None:
    from published import load

    train, test = load("mnist")
    model = make_model()
    phalanx.fit(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        train=train,
        test=test,
        validation=0.1,
        epochs=25,
        batch=128,
    )


if __name__ == "__main__":
    main()
