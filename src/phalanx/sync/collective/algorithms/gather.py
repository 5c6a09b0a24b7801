"""Gather, scatter, all to all, and all gather: everybody's messages to everybody.

The last is for encoded gradients, which cannot be summed on the way. Each participant decodes all
of them and adds in the order of ranks. A few participants send directly; many pass messages
around a ring (Chan et al., "Collective communication: theory, practice, and experience", 2007),
so that no port is sent to by all at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from phalanx.policies.collective_choice import MOST_DIRECT
from phalanx.sync.collective.links import Links, raw
from phalanx.sync.collective.parts import split


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


def scatter(links: Links, flat: Tensor, root: int = 0) -> None:
    """Part ``k`` of participant ``k`` becomes that of the root; the rest stays as it is."""
    parts = split(flat, links.size)
    if links.rank != root:
        links.receive(root, parts[links.rank])
        return
    links.swap([(k, (raw(part),)) for k, part in enumerate(parts) if k != root], [])


def all_to_all(links: Links, outgoing: Tensor, incoming: Tensor) -> None:
    """Part ``k`` of ``outgoing`` goes to participant ``k``; part ``k`` of ``incoming`` is its.

    By pairwise exchange (Thakur, Rabenseifner and Gropp 2005, section 3.3): in round ``i`` each
    sends to the one ``i`` places further. Parts are equal: the number of participants
    has to divide the length of both.
    """
    rank, size = links.rank, links.size
    if outgoing.numel() % size or incoming.shape != outgoing.shape:
        raise ValueError(f"{outgoing.numel()} elements cannot go to {size} in equal parts")
    sends, receives = outgoing.view(size, -1), incoming.view(size, -1)
    receives[rank].copy_(sends[rank])
    for step in range(1, size):
        to, frm = (rank + step) % size, (rank - step) % size
        links.exchange(to, sends[to], frm, receives[frm])
