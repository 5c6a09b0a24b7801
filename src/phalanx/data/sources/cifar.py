"""CIFAR-10: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

The binary version: per image one label byte, then 3,072 bytes of pixels (channel, row, column).
"""

from __future__ import annotations

import tarfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import torch

from phalanx.core.errors import InputError
from phalanx.core.script import datasets
from phalanx.data.fetch import Order, fetch_files, locked, replace_with
from phalanx.data.sources.published import Published, Read, Split, damaged, read_all

HOMES = datasets.HOMES["cifar-10"]
ARCHIVE = "cifar-10-binary.tar.gz"
ARCHIVE_LIMIT = 256 << 20
ROW = 1 + 3 * 32 * 32
CLASSES = 10
CHECKSUMS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
FILES = [Published(name, 10_000 * ROW, checksum) for name, checksum in CHECKSUMS.items()]


def cifar_10(folder: Path) -> tuple[Split, Split, dict[str, str]]:
    """Photographs of ten kinds of things, 32×32, in colour."""
    found = read_all(folder, FILES, partial(_fetch, folder))
    *training, test = [found[file.name] for file in FILES]
    checksums = {name: file.sha256 for name, file in found.items()}
    return split(training), split([test]), checksums


def split(files: list[Read]) -> Split:
    """The images and labels of one or several files."""
    rows = np.concatenate([_rows(file) for file in files])
    x = torch.from_numpy(rows[:, 1:].astype(np.float32)).div_(255).view(-1, 3, 32, 32)
    return x, torch.from_numpy(rows[:, 0].astype(np.int64))


def _rows(file: Read) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    if not file.data or len(file.data) % ROW:
        raise damaged(file.path, f"its size is not a multiple of {ROW:,} bytes")
    rows = np.frombuffer(file.data, np.uint8).reshape(-1, ROW)
    if int(rows[:, 0].max()) >= CLASSES:
        raise damaged(file.path, f"it has a label {int(rows[:, 0].max())}")
    return rows


def _fetch(folder: Path, missing: list[Published]) -> None:
    makes = [file.name for file in missing]
    fetch_files(Order("cifar-10", HOMES, {ARCHIVE: ARCHIVE_LIMIT}, makes=makes), folder)
    archive = folder / ARCHIVE
    with locked(folder):
        if not archive.exists():
            return  # Another worker unpacked it while this one waited.
        try:
            unpack(archive, folder, {file.name: file.size for file in missing})
        finally:
            archive.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path, wanted: dict[str, int]) -> None:
    """Take the ``wanted`` files (name to size) out of ``archive``, wherever in it they lie."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = Path(member.name).name
                content = tar.extractfile(member) if member.isfile() else None
                if content is None or wanted.get(name) != member.size:
                    continue
                with replace_with(folder / name) as file:
                    file.write(content.read())
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InputError(
            f"cannot unpack {archive}: {error}", f"Put {', '.join(wanted)} into {folder} yourself."
        ) from error
