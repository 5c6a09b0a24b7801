"""An all-reduce in which all participants send to all others at once.

Two participants exchange everything and add. More of them divide the sum: participant ``k``
receives part ``k`` from all others, adds in the order of ranks, and sends the sum to all others;
that is reduce-scatter and all-gather in one round each (Rabenseifner, "Optimization of collective
reduction operations", 2004; rounds by direct exchange as in Chan et al., "Collective
communication: theory, practice, and experience", 2007).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from phalanx.sync.collective.links import Links, raw
from phalanx.sync.collective.parts import part_sizes, split


def all_reduce(links: Links, flat: Tensor) -> None:
    """Sum ``flat`` over all participants, in place."""
    if links.size == 2:
        links.exchange_add(1 - links.rank, flat, 1 - links.rank, flat)
    elif links.size > 2:
        parts = split(flat, links.size)
        own, peers = parts[links.rank], others(links)
        room = links.scratch.take(own, own.numel() * len(peers)).view(len(peers), own.numel())
        arrived = dict(zip(peers, room, strict=True))
        links.swap(
            [(peer, (raw(parts[peer]),)) for peer in peers],
            [(peer, (raw(arrived[peer]),)) for peer in peers],
        )
        add_in_order(own, arrived, links.rank)
        all_gather(links, parts)


def bytes_sent(count_bytes: int, size: int, rank: int) -> int:
    """Return the bytes that participant ``rank`` sends to reduce ``count_bytes``."""
    if size == 2:
        return count_bytes
    own = part_sizes(count_bytes, size)[rank]
    return count_bytes - own + own * (size - 1) if size > 2 else 0


def add_in_order(own: Tensor, arrived: Mapping[int, Tensor], rank: int) -> None:
    """Sum what has ``arrived`` and ``own`` into ``own``, in the order of ranks."""
    terms = [arrived.get(place, own) for place in range(len(arrived) + 1)]
    before = terms[0]
    for term in terms[1:rank]:
        before.add_(term)
    if rank > 0:
        own.copy_(before.add_(own))
    for term in terms[rank + 1 :]:
        own.add_(term)


def all_gather(links: Links, parts: list[Tensor]) -> None:
    """Send this participant's part, which it has summed, to all others, and receive theirs."""
    own, peers = raw(parts[links.rank]), others(links)
    links.swap([(peer, (own,)) for peer in peers], [(peer, (raw(parts[peer]),)) for peer in peers])


def others(links: Links) -> list[int]:
    """List the others from the successor on, so that not all send to the same one first."""
    return [(links.rank + step) % links.size for step in range(1, links.size)]
