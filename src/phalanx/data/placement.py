"""Whether data in the host's memory are copied to the GPU once, before the training."""

from __future__ import annotations

import torch

from phalanx.core import words
from phalanx.core.errors import InputError
from phalanx.core.settings import DataOn
from phalanx.data.reader import Reader, TensorReader

SHARE = 0.2
"""Largest share of a GPU's memory that data may take there without being asked for."""


def placed(reader: Reader, device: torch.device, where: DataOn, workers: int) -> Reader:
    """The reader to use: of the same samples on ``device`` if they should be there.

    ``workers`` is how many may do the same on that device.
    """
    if device.type != "cuda" or where == "host" or not isinstance(reader, TensorReader):
        return reader
    if reader.device != torch.device("cpu"):
        return reader
    size = sum(t.nbytes for t in reader.tensors)
    if where == "auto":
        free, total = torch.cuda.mem_get_info(device)
        if not reader.moves or not fits(size * workers, free, total):
            return reader
    try:
        moved = reader.on(device)
    except torch.cuda.OutOfMemoryError:
        raise InputError(
            f"--data-on device: {words.size(size)} of data do not fit into the GPU's free memory",
            "Leave it out, or use --data-on host.",
        ) from None
    moved.note = f"copied the data ({words.size(size)}) to the GPU (else: --data-on host)"
    return moved


def fits(size: int, free: int, total: int) -> bool:
    """What a model and its batches take is not known yet: much is left for them."""
    return size <= SHARE * total and size <= free / 2
