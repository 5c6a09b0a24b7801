"""Butterfly: recursive halving, then recursive doubling.

Rabenseifner's algorithm as in Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH" (2005), section 4.5: of n participants, those n/2 apart exchange
halves of the message and add them, then those n/4 apart quarters, and so on; then the sums take
the same steps back. If n is no power of two, the first ones pair up, and one acts for each pair.
"""

from __future__ import annotations

from torch import Tensor

from phalanx.sync.collective.links import Links
from phalanx.sync.collective.parts import element_starts, part_starts, split

Step = tuple[int, tuple[int, int], tuple[int, int]]
"""The partner's place, the parts that the partner keeps, and the parts that this one keeps."""


def all_reduce(links: Links, flat: Tensor) -> None:
    """Sum ``flat`` over all participants, in place."""
    acting, pairs = _shape(links.size)
    if links.rank < 2 * pairs:
        _fold(links, flat)
    if (place := _place(links.rank, pairs)) is not None:
        _halve_and_double(links, flat, acting, place, pairs)
    if links.rank < 2 * pairs:
        _unfold(links, flat)


def bytes_sent(count_bytes: int, size: int, rank: int) -> int:
    """Return the bytes that participant ``rank`` sends to reduce ``count_bytes``."""
    acting, pairs = _shape(size)
    middle = part_starts(count_bytes, 2)[1]
    place = _place(rank, pairs)
    if place is None:
        return count_bytes
    starts = part_starts(count_bytes, acting)
    folded = count_bytes - middle + count_bytes if rank < 2 * pairs else 0
    given = [theirs for _, theirs, _ in _steps(acting, place)]
    kept = [ours for _, _, ours in _steps(acting, place)]
    return folded + sum(starts[high] - starts[low] for low, high in given + kept)


def _shape(size: int) -> tuple[int, int]:
    """Return how many participants act (a power of two), and how many pairs the first ones form."""
    acting = 1 << (size.bit_length() - 1)
    return acting, size - acting


def _place(rank: int, pairs: int) -> int | None:
    """Return the place of ``rank`` among those who act; ``None`` for the odd one of a pair."""
    if rank >= 2 * pairs:
        return rank - pairs
    return None if rank % 2 else rank // 2


def _rank(place: int, pairs: int) -> int:
    return 2 * place if place < pairs else place + pairs


def _steps(acting: int, place: int) -> list[Step]:
    steps: list[Step] = []
    low, high = 0, acting
    while high - low > 1:
        distance = (high - low) // 2
        lower, upper = (low, low + distance), (low + distance, high)
        ours, theirs = (upper, lower) if place & distance else (lower, upper)
        steps.append((place ^ distance, theirs, ours))
        low, high = ours
    return steps


def _halve_and_double(links: Links, flat: Tensor, acting: int, place: int, pairs: int) -> None:
    starts = element_starts(flat, acting)

    def part(bounds: tuple[int, int]) -> Tensor:
        return flat[starts[bounds[0]] : starts[bounds[1]]]

    steps = [
        (_rank(p, pairs), part(theirs), part(ours)) for p, theirs, ours in _steps(acting, place)
    ]
    for partner, theirs, ours in steps:
        links.exchange_add(partner, theirs, partner, ours)
    for partner, theirs, ours in reversed(steps):
        links.exchange(partner, ours, partner, theirs)


def _fold(links: Links, flat: Tensor) -> None:
    """Let each participant of a pair sum one half, and give both sums to the even one."""
    first, second = split(flat, 2)
    if links.rank % 2:
        links.exchange_add(links.rank - 1, first, links.rank - 1, second)
        links.send(links.rank - 1, second)
    else:
        links.exchange_add(links.rank + 1, second, links.rank + 1, first)
        links.receive(links.rank + 1, second)


def _unfold(links: Links, flat: Tensor) -> None:
    if links.rank % 2:
        links.receive(links.rank - 1, flat)
    else:
        links.send(links.rank + 1, flat)
