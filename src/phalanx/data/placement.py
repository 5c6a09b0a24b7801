"""Decides whether data in the host's memory are copied to the GPU once, before the training."""

from __future__ import annotations

import torch

from phalanx.core import words
from phalanx.data.reader import Reader, TensorReader

SHARE = 0.2
"""Largest share of a GPU's memory that data may take there."""


def placed(reader: Reader, device: torch.device, workers: int) -> Reader:
    """The reader to use: of the same samples on ``device`` if they fit there.

    ``workers`` is how many may do the same on that device.
    """
    if device.type != "cuda" or not isinstance(reader, TensorReader) or not reader.moves:
        return reader
    if reader.device != torch.device("cpu"):
        return reader
    size = sum(t.nbytes for t in reader.tensors)
    if not fits(size * workers, *torch.cuda.mem_get_info(device)):
        return reader
    moved = reader.on(device)
    moved.note = f"copied the data ({words.size(size)}) to the GPU"
    return moved


def fits(size: int, free: int, total: int) -> bool:
    """Whether ``size`` bytes fit, with room for a model and batches whose size is not known yet."""
    return size <= SHARE * total and size <= free / 2
