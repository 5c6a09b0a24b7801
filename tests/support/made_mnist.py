"""Noise in MNIST's format: small, and there without a network."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

IDX_FILES = tuple(
    f"{prefix}-{kind}"
    for prefix in ("train", "t10k")
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
IMAGES = (4000, 1000)


def make_mnist(folder: Path, *, zipped: bool = False, images: tuple[int, int] = IMAGES) -> None:
    folder.mkdir(parents=True)
    for name in IDX_FILES:
        count = images[name.startswith("t10k")]
        if "images" in name:
            content = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + os.urandom(count * 784)
        else:
            labels = bytes(n % 10 for n in range(count))
            content = struct.pack(">4BI", 0, 0, 8, 1, count) + labels
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1))
        else:
            (folder / name).write_bytes(content)
