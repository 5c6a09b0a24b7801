"""Receiving something in order to add it: the step that reductions are made of."""

from __future__ import annotations

from torch import Tensor

from phalanx.sync.collective.links import Links

PIECE = 1 << 20
"""Bytes received at a time: a piece is added while it is in the cache and the next one arrives."""


def receive_add(links: Links, frm: int, target: Tensor) -> None:
    """``target`` plus what ``frm`` sends. The sender need not know about pieces."""
    count = max(1, PIECE // target.element_size())
    for piece in target.split(count) if target.numel() else ():
        arrived = links.scratch.take(piece)
        links.receive(frm, arrived)
        piece.add_(arrived)
