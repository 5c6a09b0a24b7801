"""All-to-all by pairwise exchange: in round ``i`` each sends to the one ``i`` places further.

Thakur, Rabenseifner and Gropp (2005), section 3.3: one port receives from one sender at a time.
"""

from __future__ import annotations

from torch import Tensor

from phalanx.sync.collective.links import Links


def all_to_all(links: Links, outgoing: Tensor, incoming: Tensor) -> None:
    """Part ``k`` of ``outgoing`` goes to participant ``k``; part ``k`` of ``incoming`` is its.

    Parts are equal, so the number of participants has to divide the length of both.
    """
    rank, size = links.rank, links.size
    if outgoing.numel() % size or incoming.shape != outgoing.shape:
        raise ValueError(f"{outgoing.numel()} elements cannot go to {size} in equal parts")
    sends, receives = outgoing.view(size, -1), incoming.view(size, -1)
    receives[rank].copy_(sends[rank])
    for step in range(1, size):
        to, frm = (rank + step) % size, (rank - step) % size
        links.exchange(to, sends[to], frm, receives[frm])


def all_to_all_bytes(count_bytes: int, size: int, rank: int) -> int:
    """What each participant sends: all but its own part."""
    return count_bytes - count_bytes // size
