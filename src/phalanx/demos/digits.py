"""What ``phalanx demo`` trains: a small convolutional network that reads handwritten digits.

It is an ordinary script: plain ``python digits.py`` trains it alone. Each image is turned a little,
at random, when it is read; images are read one by one in Python, as in most data sets, and this
reading is where two workers are faster than one with two threads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import phalanx

MOST_DEGREES = 15


class TurnedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Each image turned by an angle that is drawn when it is read."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        angle = math.radians(MOST_DEGREES) * (2 * torch.rand(()).item() - 1)
        sine, cosine = math.sin(angle), math.cos(angle)
        turn = torch.tensor([[[cosine, -sine, 0.0], [sine, cosine, 0.0]]])
        grid = nn.functional.affine_grid(turn, [1, 1, 8, 8], align_corners=False)
        image = nn.functional.grid_sample(self._images[number][None], grid, align_corners=False)
        return image[0], self._labels[number]


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
        train=TurnedDigits(*train),
        test=test,
        epochs=10,
        batch=128,
    )


if __name__ == "__main__":
    main()
