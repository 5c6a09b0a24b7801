"""Everybody's messages to everybody: for encoded gradients, which cannot be summed on the way.

Each participant decodes all of them and adds in the order of ranks. A few participants send
directly; many pass messages around a ring (Chan et al., "Collective communication: theory,
practice, and experience", 2007), so that no port is sent to by all at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from phalanx.sync.collective.choose import MOST_DIRECT
from phalanx.sync.collective.links import Links, raw
from phalanx.sync.collective.parts import part_sizes, split


def all_gather(links: Links, payload: Sequence[Tensor]) -> list[list[Tensor]]:
    """Everybody's payload, by rank; one's own is the very one given."""
    if links.size <= MOST_DIRECT:
        return all_gather_direct(links, payload)
    return all_gather_ring(links, payload)


def all_gather_direct(links: Links, payload: Sequence[Tensor]) -> list[list[Tensor]]:
    others = [rank for rank in range(links.size) if rank != links.rank]
    received = links.swap_payloads(dict.fromkeys(others, payload), others) if others else {}
    return [received.get(rank, list(payload)) for rank in range(links.size)]


def all_gather_ring(links: Links, payload: Sequence[Tensor]) -> list[list[Tensor]]:
    """Each passes on what it received last, until everybody has everything."""
    rank, size = links.rank, links.size
    gathered: list[list[Tensor]] = [list(payload) for _ in range(size)]
    for step in range(size - 1):
        newest = gathered[(rank - step) % size]
        arrived = links.exchange_payloads((rank + 1) % size, newest, (rank - 1) % size)
        gathered[(rank - step - 1) % size] = arrived
    return gathered


def gather(links: Links, flat: Tensor, root: int = 0) -> None:
    """The root's ``flat`` gets part ``k`` from participant ``k``."""
    parts = split(flat, links.size)
    if links.rank != root:
        links.send(root, parts[links.rank])
        return
    links.swap([], [(k, (raw(part),)) for k, part in enumerate(parts) if k != root])


def gather_bytes(count_bytes: int, size: int, rank: int, root: int = 0) -> int:
    """What participant ``rank`` sends in :func:`gather`."""
    return 0 if rank == root else part_sizes(count_bytes, size)[rank]
