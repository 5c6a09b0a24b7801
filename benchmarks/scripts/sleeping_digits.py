"""Digits whose forward pass is followed by a sleep, as if a slower machine computed.

The sleep comes after the weights were read: the gradient is as old as it would be there. Without
``--sleep`` it is what ``phalanx simulate`` trains.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import phalanx

parser = argparse.ArgumentParser()
parser.add_argument("--sleep", type=float, default=0.0, metavar="MS")
parser.add_argument("--epochs", type=int, default=6)
chosen = parser.parse_args()
train, test = phalanx.data.load("digits")
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(16 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
)  # fmt: skip
model.register_forward_hook(lambda m, *_: time.sleep(chosen.sleep / 1e3) if m.training else None)
phalanx.fit(
    model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    loss=nn.CrossEntropyLoss(),
    train=train,
    test=test,
    epochs=chosen.epochs,
    batch=64,
)
