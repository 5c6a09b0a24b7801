"""Binomial tree: a reduction to the root, a broadcast from it; few rounds, whole messages.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
International Journal of High Performance Computing Applications 19 (2005), section 4.
"""

from __future__ import annotations

from torch import Tensor

from phalanx.sync.collective.links import Links

PIECE = 1 << 20
"""Bytes received at a time: a piece is added while it is in the cache and the next one arrives."""


def all_reduce(links: Links, flat: Tensor) -> None:
    """Sum ``flat`` over all participants, in place."""
    reduce(links, flat)
    broadcast(links, flat)


def bytes_sent(count_bytes: int, size: int, rank: int) -> int:
    """Return the bytes that ``rank`` sends: once to its parent, once to each child."""
    parent, children = family(rank, size, 0)
    return count_bytes * (len(children) + (parent is not None))


def reduce(links: Links, flat: Tensor, root: int = 0) -> None:
    """Sum into the ``flat`` of the root; that of the others holds partial sums afterwards."""
    parent, children = family(links.rank, links.size, root)
    for child in children:
        # The sender need not know that the receiver takes pieces.
        count = max(1, PIECE // flat.element_size())
        for piece in flat.split(count) if flat.numel() else ():
            arrived = links.scratch.take(piece)
            links.receive(child, arrived)
            piece.add_(arrived)
    if parent is not None:
        links.send(parent, flat)


def broadcast(links: Links, flat: Tensor, root: int = 0) -> None:
    """Copy the root's ``flat`` into that of all others."""
    parent, children = family(links.rank, links.size, root)
    if parent is not None:
        links.receive(parent, flat)
    for child in reversed(children):
        links.send(child, flat)


def family(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """Return the parent of ``rank``, and its children from the smallest subtree to the largest."""
    place = (rank - root) % size
    children, distance = [], 1
    while distance < size and not place & distance:
        if place + distance < size:
            children.append((place + distance + root) % size)
        distance *= 2
    parent = None if place == 0 else (place - distance + root) % size
    return parent, children
