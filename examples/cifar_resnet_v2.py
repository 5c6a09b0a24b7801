"""CIFAR-10 with a bottleneck ResNet v2: experiment 2 of a study of TensorFlow and Horovod.

    phalanx run examples/cifar_resnet_v2.py --workers 2
    phalanx run examples/cifar_resnet_v2.py --workers 2 --batch 256 -- --depth 29

Depth 56 (any 9n+2), L2 regularisation, Adadelta, 25 epochs; the study varied the global batch from
64 to 512. The network is of He and others, "Identity mappings in deep residual networks" (2016).
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import phalanx

L2 = 1e-4


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1, each after normalisation and ReLU, beside a shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, first: bool) -> None:
        super().__init__()
        # The stem has been normalised already, so the very first block begins with a convolution.
        ready = [] if first else [nn.BatchNorm2d(inputs), nn.ReLU()]
        self.body = nn.Sequential(
            *ready,
            nn.Conv2d(inputs, width, 1, stride),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1),
        )
        same = inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.body(x)


def make_model(depth: int = 56) -> nn.Sequential:
    if depth < 11 or (depth - 2) % 9:
        raise SystemExit(f"--depth is 9n+2 (11, 20, 29, 56, …), not {depth}")
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    inputs = 16
    for stage, (width, outputs) in enumerate([(16, 64), (64, 128), (128, 256)]):
        for block in range((depth - 2) // 9):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(inputs, width, outputs, stride, stage == block == 0))
            inputs = outputs
    head = [nn.BatchNorm2d(256), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(256, 10)]
    return nn.Sequential(*layers, *head)


def main() -> None:
    from published import load

    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=56)
    model = make_model(parser.parse_args().depth)
    train, test = load("cifar-10")
    optimizer = torch.optim.Adadelta(model.parameters(), weight_decay=L2)
    loss = nn.CrossEntropyLoss()
    phalanx.fit(model, optimizer=optimizer, loss=loss, train=train, test=test, epochs=25, batch=128)


if __name__ == "__main__":
    main()
