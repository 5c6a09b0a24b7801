"""Divides a flat tensor among participants: in whole cache lines, as evenly as possible."""

from __future__ import annotations

import itertools

from torch import Tensor

LINE = 64
"""Bytes of a cache line. Every element size divides it, so parts depend on the bytes only."""


def part_starts(nbytes: int, size: int) -> list[int]:
    """Return ``size + 1`` offsets in bytes; part ``k`` lies between the ``k``-th and the next."""
    lines = -(-nbytes // LINE)
    return [min(nbytes, lines * k // size * LINE) for k in range(size + 1)]


def part_sizes(nbytes: int, size: int) -> list[int]:
    """Return the bytes of each part."""
    starts = part_starts(nbytes, size)
    return [high - low for low, high in itertools.pairwise(starts)]


def element_starts(flat: Tensor, size: int) -> list[int]:
    """Return the offsets of the parts in elements of ``flat``."""
    width = flat.element_size()
    return [start // width for start in part_starts(flat.numel() * width, size)]


def split(flat: Tensor, size: int) -> list[Tensor]:
    """Return ``flat`` as ``size`` views, one for each participant."""
    starts = element_starts(flat, size)
    return [flat[low:high] for low, high in itertools.pairwise(starts)]
