"""Ready-made data sets as files: what each consists of, and where a machine keeps them.

Here, and not beside their readers, because those import torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from phalanx.core.files import cache_home
from phalanx.core.settings import DATA

UNCHECKED_VARIABLE = "PHALANX_DATA_UNCHECKED"
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
FILES: dict[str, Sequence[str]] = {
    "digits": (),  # inside the package
    "mnist": IDX_FILES,
    "fashion-mnist": IDX_FILES,
    "kmnist": IDX_FILES,
    "cifar-10": CIFAR_FILES,
}
HOMES: dict[str, list[str]] = {
    "mnist": [
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ],
    "fashion-mnist": [
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ],
    "kmnist": ["https://codh.rois.ac.jp/kmnist/dataset/kmnist/"],
    "cifar-10": ["https://www.cs.toronto.edu/~kriz/"],
}


def data_home() -> Path:
    """Where this machine keeps ready-made data sets, each in a folder of its name."""
    named = os.environ.get(DATA)
    return Path(named).expanduser() if named else cache_home() / "datasets"


def unchecked() -> bool:
    return os.environ.get(UNCHECKED_VARIABLE, "") not in ("", "0")


def locate(folder: Path, name: str) -> Path | None:
    """The file, plain or gzipped, when it is there."""
    candidates = (folder / name, folder / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def files_in(folder: Path, name: str) -> list[Path]:
    """The files of the data set ``name`` in ``folder``: all of them, or none."""
    found = [locate(folder, file) for file in FILES.get(name, ())]
    return [path for path in found if path] if all(found) else []
