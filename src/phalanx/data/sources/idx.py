"""MNIST, Fashion-MNIST and KMNIST: images and labels in Y. LeCun's IDX format.

IDX: two zero bytes, the type of the values (8 is unsigned byte), the number of dimensions, each
dimension as a big-endian 32-bit number, then the values.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from phalanx.core.errors import InputError
from phalanx.core.script.datasets import HOMES, IDX_FILES
from phalanx.data.fetch import Order, fetch_files
from phalanx.data.sources.published import Published, Read, Split, damaged, read, read_all

UNSIGNED_BYTE = 8
SIDE = 28
CLASSES = 10
NAMES = IDX_FILES
SIZES = (16 + 60_000 * SIDE * SIDE, 8 + 60_000, 16 + 10_000 * SIDE * SIDE, 8 + 10_000)
Checksums = tuple[str | None, str | None, str | None, str | None]

MNIST_HOMES = HOMES["mnist"]
MNIST_CHECKSUMS: Checksums = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
FASHION_HOMES = HOMES["fashion-mnist"]
FASHION_CHECKSUMS: Checksums = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
KMNIST_HOMES = HOMES["kmnist"]
# Its home publishes no checksums of the decompressed files: shape and size are checked.
KMNIST_CHECKSUMS: Checksums = (None, None, None, None)


def mnist(folder: Path) -> tuple[Split, Split, dict[str, str]]:
    """Handwritten digits: LeCun, Cortes and Burges, 1998."""
    return _read("mnist", folder, MNIST_HOMES, MNIST_CHECKSUMS)


def fashion_mnist(folder: Path) -> tuple[Split, Split, dict[str, str]]:
    """Articles of clothing: Xiao, Rasul and Vollgraf, 2017."""
    return _read("fashion-mnist", folder, FASHION_HOMES, FASHION_CHECKSUMS)


def kmnist(folder: Path) -> tuple[Split, Split, dict[str, str]]:
    """Cursive Japanese characters: Clanuwat and others, 2018."""
    return _read("kmnist", folder, KMNIST_HOMES, KMNIST_CHECKSUMS)


def _read(
    name: str, folder: Path, homes: list[str], checksums: Checksums
) -> tuple[Split, Split, dict[str, str]]:
    files = [Published(*facts) for facts in zip(NAMES, SIZES, checksums, strict=True)]

    def fetch(missing: list[Published]) -> None:
        wanted = {f"{file.name}.gz": file for file in missing}
        limits = {archive: file.size + (1 << 20) for archive, file in wanted.items()}

        def accept(archive: Path) -> None:
            read(folder, wanted[archive.name])

        fetch_files(Order(name, homes, limits, accept=accept), folder)

    found = read_all(folder, files, fetch)
    train = _split(found[NAMES[0]], found[NAMES[1]])
    test = _split(found[NAMES[2]], found[NAMES[3]])
    return train, test, {file: content.sha256 for file, content in found.items()}


def _split(images: Read, labels: Read) -> Split:
    pixels, classes = parse(images, dimensions=3), parse(labels, dimensions=1)
    if len(pixels) != len(classes):
        raise damaged(labels.path, f"it has {len(classes):,} labels for {len(pixels):,} images")
    if classes.size and int(classes.max()) >= CLASSES:
        raise damaged(labels.path, f"it has a label {int(classes.max())}")
    x = torch.from_numpy(pixels.astype(np.float32)).div_(255).unsqueeze(1)
    return x, torch.from_numpy(classes.astype(np.int64))


def parse(file: Read, *, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of an IDX file of unsigned bytes."""
    data = file.data
    header = 4 + 4 * dimensions
    if data[:4] != bytes((0, 0, UNSIGNED_BYTE, dimensions)) or len(data) < header:
        raise _not_idx(file, f"its header is not that of {dimensions}-dimensional unsigned bytes")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", dimensions, 4))
    if math.prod(shape) != len(data) - header:
        raise _not_idx(file, f"it holds {len(data) - header:,} values, but its header says {shape}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _not_idx(file: Read, why: str) -> InputError:
    return InputError(
        f"{file.path} is not an IDX file: {why}", "Delete it; it is then downloaded again."
    )
