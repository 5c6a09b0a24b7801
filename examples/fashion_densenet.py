"""Fashion-MNIST with the DenseNet-40 of the Strategy Switch study.

    phalanx compare examples/fashion_densenet.py --workers 2 --strategies allreduce,switch:at=0.5

Growth 12, three blocks, bottlenecks, reduction 0.5, dropout 0.1; 40 epochs, the rate divided by
ten at 20 and at 30; no augmentation. Published validation accuracy: 94.51 all-reduce, 93.99
asynchronous, 94.48 switched at half. The network is of Huang and others (2017).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import phalanx

GROWTH = 12
DROPOUT = 0.1


def convolution(inputs: int, outputs: int, size: int) -> list[nn.Module]:
    """Normalise, ReLU, convolve, drop."""
    return [
        nn.BatchNorm2d(inputs),
        nn.ReLU(),
        nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False),
        nn.Dropout(DROPOUT),
    ]


class Dense(nn.Module):
    """Adds ``GROWTH`` channels to those that it was given."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        width = 4 * GROWTH
        self.body = nn.Sequential(*convolution(inputs, width, 1), *convolution(width, GROWTH, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], dim=1)


def make_model(depth: int = 40, reduction: float = 0.5) -> nn.Sequential:
    channels = 2 * GROWTH
    layers: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=1, bias=False)]
    for block in range(3):
        for _ in range((depth - 4) // 6):
            layers.append(Dense(channels))
            channels += GROWTH
        if block < 2:
            kept = int(channels * reduction)
            layers += [*convolution(channels, kept, 1), nn.AvgPool2d(2)]
            channels = kept
    pool = nn.AdaptiveAvgPool2d(1)
    head = [nn.BatchNorm2d(channels), nn.ReLU(), pool, nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers, *head)


def main() -> None:
    from published import load

    train, test = load("fashion-mnist")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    phalanx.fit(
        model,
        optimizer=optimizer,
        loss=nn.CrossEntropyLoss(),
        train=train,
        test=test,
        epochs=40,
        batch=128,
        scheduler=torch.optim.lr_scheduler.MultiStepLR(optimizer, [20, 30]),
    )


if __name__ == "__main__":
    main()
