"""Scatter: the root sends each participant its part, all at once."""

from __future__ import annotations

from torch import Tensor

from phalanx.sync.collective.links import Links, raw
from phalanx.sync.collective.parts import part_sizes, split


def scatter(links: Links, flat: Tensor, root: int = 0) -> None:
    """Part ``k`` of participant ``k`` becomes that of the root; the rest stays as it is."""
    parts = split(flat, links.size)
    if links.rank != root:
        links.receive(root, parts[links.rank])
        return
    links.swap([(k, (raw(part),)) for k, part in enumerate(parts) if k != root], [])


def scatter_bytes(count_bytes: int, size: int, rank: int, root: int = 0) -> int:
    """What participant ``rank`` sends in :func:`scatter`."""
    return count_bytes - part_sizes(count_bytes, size)[root] if rank == root else 0
