"""Handwritten digits, 8×8 pixels, inside the package: nothing to download.

The test set of E. Alpaydin and C. Kaynak's "Optical Recognition of Handwritten Digits" (UCI, 1998,
CC BY 4.0), as distributed with scikit-learn; see README.md beside the file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

Split = tuple[Tensor, Tensor]
FILE = Path(__file__).with_name("digits.npz")
TRAIN = 1500
BRIGHTEST = 16


def digits(_folder: Path) -> tuple[Split, Split, dict[str, str]]:
    """1,500 training and 297 test images; the split is a fixed shuffle."""
    with np.load(FILE, allow_pickle=False) as archive:
        images, labels = archive["images"], archive["labels"]
    checksum = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    # RandomState, because NumPy guarantees that its stream never changes.
    order = np.random.RandomState(0).permutation(len(labels))
    x = torch.from_numpy(images[order]).float().div_(BRIGHTEST).unsqueeze(1)
    y = torch.from_numpy(labels[order]).long()
    train, test = (x[:TRAIN], y[:TRAIN]), (x[TRAIN:].clone(), y[TRAIN:].clone())
    return train, test, {FILE.name: checksum}
