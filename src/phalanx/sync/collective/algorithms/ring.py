"""Ring all-reduce: each sends to its successor only, and all links carry equally many bytes.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
Journal of Parallel and Distributed Computing 69 (2009). Part ``k`` travels around the ring, and
each participant adds its own part ``k``; then the sums travel around once more.
"""

from __future__ import annotations

from torch import Tensor

from phalanx.sync.collective.links import Links
from phalanx.sync.collective.parts import part_sizes, split


def all_reduce(links: Links, flat: Tensor) -> None:
    """Sum ``flat`` over all participants, in place."""
    rank, size = links.rank, links.size
    if size == 1:
        return
    parts = split(flat, size)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        links.exchange_add(right, parts[rank - step], left, parts[rank - step - 1])
    for step in range(size - 1):
        links.exchange(right, parts[(rank + 1 - step) % size], left, parts[rank - step])


def bytes_sent(count_bytes: int, size: int, rank: int) -> int:
    """Return the bytes that ``rank`` sends: all parts but one in each of the two rounds."""
    sizes = part_sizes(count_bytes, size)
    if size == 1:
        return 0
    return 2 * count_bytes - sizes[(rank + 1) % size] - sizes[(rank + 2) % size]
