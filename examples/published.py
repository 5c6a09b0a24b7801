"""MNIST, Fashion-MNIST, KMNIST and CIFAR-10 for the examples: from files, else by torchvision.

    from published import load
    train, test = load("mnist")

The files are looked for in the folder of --data, in its folder NAME, in $PHALANX_DATA/NAME and in
~/.cache/phalanx/datasets/NAME: IDX files (gzipped or not), or CIFAR-10's binary version. Without
them torchvision (pip install 'phalanx-train[examples]') downloads the set there.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import phalanx
from phalanx.data.load import SOURCES

Split = tuple[Tensor, Tensor]
IDX = [
    f"{part}-{kind}"
    for part in ("train", "t10k")
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
]
CIFAR = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
CLASSES = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "kmnist": "KMNIST"}
load = phalanx.data.load


def mnist(folder: Path) -> tuple[Split, Split, dict[str, str]]:
    return _idx(folder, "mnist")


def fashion_mnist(folder: Path) -> tuple[Split, Split, dict[str, str]]:
    return _idx(folder, "fashion-mnist")


def kmnist(folder: Path) -> tuple[Split, Split, dict[str, str]]:
    return _idx(folder, "kmnist")


def _idx(folder: Path, name: str) -> tuple[Split, Split, dict[str, str]]:
    if (files := _read(folder, IDX)) is None:
        return _by_torchvision(folder, CLASSES[name])
    x, y, test_x, test_y = (np.frombuffer(files[name], np.uint8) for name in IDX)
    sides = (-1, 1, 28, 28)
    train = _pair(x[16:].reshape(sides), y[8:])
    return train, _pair(test_x[16:].reshape(sides), test_y[8:]), _checksums(files)


def cifar_10(folder: Path) -> tuple[Split, Split, dict[str, str]]:
    if (files := _read(folder, CIFAR)) is None:
        return _by_torchvision(folder, "CIFAR10")
    rows = [np.frombuffer(files[name], np.uint8).reshape(-1, 1 + 3072) for name in CIFAR]
    parts = (np.concatenate(rows[:5]), rows[5])
    train, test = (_pair(part[:, 1:].reshape(-1, 3, 32, 32), part[:, 0]) for part in parts)
    return train, test, _checksums(files)


def _pair(x: Any, y: Any) -> Split:
    return torch.from_numpy(x.astype(np.float32)).div_(255), torch.from_numpy(y.astype(np.int64))


def _read(folder: Path, names: list[str]) -> dict[str, bytes] | None:
    """All of the files, or ``None``."""
    found = {}
    for name in names:
        plain, zipped = folder / name, folder / f"{name}.gz"
        if not plain.is_file() and not zipped.is_file():
            return None
        data = (plain if plain.is_file() else zipped).read_bytes()
        found[name] = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return found


def _checksums(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def _by_torchvision(folder: Path, kind: str) -> tuple[Split, Split, dict[str, str]]:
    """The workers of a machine take turns, so that one of them downloads."""
    from torchvision import datasets

    folder.mkdir(parents=True, exist_ok=True)
    pairs = []
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for train in (True, False):
            data = getattr(datasets, kind)(folder, train=train, download=True)
            x = np.asarray(data.data)
            x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
            pairs.append(_pair(x, np.asarray(data.targets)))
    return pairs[0], pairs[1], {}


for name in (*CLASSES, "cifar-10"):
    if name not in SOURCES.names():
        SOURCES.add(name, f"{__name__}:{name.replace('-', '_')}")
