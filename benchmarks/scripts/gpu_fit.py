"""One worker's ``phalanx.fit`` beside a careful loop of the same model, epoch by epoch in turn.

``gpu_fit.py {resnet|conv|transformer} --data KIND --out FILE [--compiled]``. After each epoch of
``fit`` the loop trains a copy of the model for an epoch on the same data; of both the seconds are
written, the first ones left out.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from examples.cifar_resnet import make_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import phalanx

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda:0" if GPU else "cpu")
WARM = 2
"""Epochs of each kind that do not count."""


class Transformer(nn.Module):
    """90 M parameters."""

    def __init__(self, width: int = 768, layers: int = 12, words: int = 6000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(self.embed(x)).mean(1))
        return found


def make_convolutions() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 64), (64, 128), (128, 256), (256, 512)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def make(name: str, steps: int) -> tuple[nn.Module, Tensor, int]:
    """The model, its samples, and its batch."""
    if name == "transformer":
        model = Transformer() if GPU else Transformer(64, 2)
        return model, torch.randint(0, 6000, (64 * steps, 128)), 64
    if name == "conv":
        return make_convolutions(), torch.randn(128 * steps, 3, 128, 128), 128
    return make_model(2), torch.randn(128 * steps, 3, 32, 32), 128


class Prepared(Dataset[tuple[Tensor, Tensor]]):
    """Samples that a worker of a loader works on, one by one: nothing can copy them at once."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        sample = self._x[index]
        return sample.flip(-1) if torch.rand(()) < 0.5 else sample, self._y[index]


class Loop:
    """What a careful user writes: nothing in it waits for the GPU before the end of an epoch."""

    def __init__(self, model: nn.Module, chosen: argparse.Namespace, half: bool) -> None:
        self.optimizer, self._half = make_optimizer(model), half
        mode = "reduce-overhead" if GPU else "default"
        self._compiled = chosen.compiled
        self.model = torch.compile(model, mode=mode, dynamic=False) if chosen.compiled else model
        self._loss = nn.CrossEntropyLoss()

    def epoch(self, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        self.model.train()
        total, correct = torch.zeros((), device=DEVICE), torch.zeros((), device=DEVICE)
        for features, targets in batches:
            self.optimizer.zero_grad()
            with self._autocast():
                outputs = self.model(features)
                error = self._loss(outputs, targets)
            error.backward()
            self.optimizer.step()
            total += error.detach() * len(targets)
            correct += (outputs.argmax(1) == targets).sum()
        float(total), float(correct)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._half:
            return torch.autocast(DEVICE.type, torch.bfloat16)
        return contextlib.nullcontext()


def from_tensors(x: Tensor, y: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(x)).to(x.device)
    for start in range(0, len(x), batch):
        chosen = order[start : start + batch]
        if x.device == DEVICE:
            yield x[chosen], y[chosen]
        else:  # pinned, so that the copy does not wait
            rows = (x[chosen].pin_memory(), y[chosen].pin_memory())
            yield rows[0].to(DEVICE, non_blocking=True), rows[1].to(DEVICE, non_blocking=True)


def from_loader(loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    for x, y in loader:
        yield x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


class Turns:
    """Stands where a schedule stands: called after each epoch of ``fit``."""

    def __init__(self, loop: Loop | None, batches: Any, out: Path) -> None:
        self._loop, self._batches, self._out = loop, batches, out
        self._seconds: dict[str, list[float]] = {"fit": [], "bare": []}
        self._epochs, self._began = 0, 0.0

    def step(self) -> None:
        now = _now()
        if self._epochs >= WARM:
            self._seconds["fit"].append(now - self._began)
        if self._loop is not None:
            began = _now()
            self._loop.epoch(self._batches())
            if self._epochs >= WARM:
                self._seconds["bare"].append(_now() - began)
        self._out.write_text(json.dumps(self._seconds))
        self._epochs += 1
        self._began = _now()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        pass


def _now() -> float:
    if GPU:
        torch.cuda.synchronize(DEVICE)
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["resnet", "conv", "transformer"])
    parser.add_argument("--data", choices=["device", "host", "loader", "prepared"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--alone", action="store_true", help="no loop beside it")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    model, x, batch = make(chosen.model, chosen.steps)
    y = torch.randint(0, 10, (len(x),))
    if chosen.data == "device":
        x, y = x.to(DEVICE), y.to(DEVICE)
    loop = (
        None
        if chosen.alone
        else Loop(copy.deepcopy(model).to(DEVICE), chosen, chosen.model != "resnet")
    )
    train: Any = (x, y)
    if chosen.data in ("loader", "prepared"):
        samples: Dataset[Any] = TensorDataset(x, y) if chosen.data == "loader" else Prepared(x, y)
        train, own = (
            DataLoader(
                samples,
                batch,
                shuffle=True,
                num_workers=4,
                pin_memory=GPU,
                persistent_workers=True,
            )
            for _ in range(2)
        )
        turns = Turns(loop, lambda: from_loader(own), chosen.out)
    else:
        turns = Turns(loop, lambda: from_tensors(x, y, batch), chosen.out)
    phalanx.fit(
        model,
        optimizer=make_optimizer(model),
        loss=nn.CrossEntropyLoss(),
        train=train,
        epochs=chosen.epochs,
        batch=batch,
        scheduler=turns,
    )


if __name__ == "__main__":
    main()
