"""Models that the executors import: sent to them by ``addPyFile``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 4, 3


def classifier(dtype: str = "float32") -> nn.Module:
    layers = nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)
    return nn.Sequential(*layers).to(getattr(torch, dtype))


def regressor() -> nn.Module:
    return nn.Linear(FEATURES, 1)


def momentum(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


class Fails(nn.Module):
    """On the second worker, at its third batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self._batches = classifier(), 0

    def forward(self, x: Tensor) -> Any:
        self._batches += 1
        if os.environ["PHALANX_RANK"] == "1" and self._batches == 3:
            raise ValueError("this model fails on purpose")
        return self.inner(x)


class Slow(nn.Module):
    """Says in ``folder`` which process trains it, and takes its time."""

    def __init__(self, folder: str, seconds: float) -> None:
        super().__init__()
        self.inner, self._seconds = classifier(), seconds
        Path(folder, f"{os.environ.get('PHALANX_RANK', 'x')}-{os.getpid()}").touch()

    def forward(self, x: Tensor) -> Any:
        if self.training:
            time.sleep(self._seconds)
        return self.inner(x)


class Notes(nn.Module):
    """Writes into ``folder`` which rows each step has had: their first number is their id."""

    def __init__(self, folder: str, seconds: float) -> None:
        super().__init__()
        self.inner, self._seconds = classifier(), seconds
        self._file = Path(folder, f"{os.environ.get('PHALANX_RANK', 'x')}-{os.getpid()}")
        self._file.touch()

    def forward(self, x: Tensor) -> Any:
        if self.training:
            with self._file.open("a") as file:
                file.write(" ".join(str(int(number)) for number in x[:, 0]) + "\n")
            time.sleep(self._seconds)
        return self.inner(x[:, 1:])
