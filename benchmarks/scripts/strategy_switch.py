"""Trains what the study of the Strategy Switch trains, or a small CNN in its place.

``strategy_switch.py {cnn|resnet} --rate 0.1 --samples 2500 --epochs 10``. At 13 and 22 thirtieths
of the epochs the rate falls to a tenth of what it was.
"""

from __future__ import annotations

import argparse

import torch
from examples import cifar_resnet
from examples.published import load
from torch import nn

import phalanx

TESTED = 2000
"""Images of the CNN's test."""


def make_cnn() -> nn.Sequential:
    """Reads digits at half their size, so that many runs take little time."""
    return nn.Sequential(
        nn.AvgPool2d(2),
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 6 * 6, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["cnn", "resnet"])
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    chosen = parser.parse_args()
    small = chosen.model == "cnn"
    train, test = load("mnist" if small else "cifar-10")
    mean = train.x.mean(0)
    x, y = train.x[: chosen.samples] - mean, train.y[: chosen.samples]
    tested = TESTED if small else len(test.y)
    model = make_cnn() if small else cifar_resnet.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=chosen.rate, momentum=0.9)
    falls = [round(chosen.epochs * part / 30) for part in (13, 22)]
    phalanx.fit(
        model,
        optimizer=optimizer,
        loss=nn.CrossEntropyLoss(),
        train=(x, y),
        test=(test.x[:tested] - mean, test.y[:tested]),
        epochs=chosen.epochs,
        batch=128,
        scheduler=torch.optim.lr_scheduler.MultiStepLR(optimizer, falls),
        augment=None if small else phalanx.data.crop_and_flip(),
    )


if __name__ == "__main__":
    main()
