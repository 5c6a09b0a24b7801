"""What messages take on the wire, by formulas: what is sent is compared with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from phalanx.core.spec.codecs import CodecSpec, parse_codec
from phalanx.sync.codec.make import make_codec, parts_of
from phalanx.sync.collective.algorithms.tree import family
from phalanx.sync.collective.parts import part_sizes
from phalanx.sync.state.layout import Layout


def reduce_bytes(count_bytes: int, size: int, rank: int, root: int = 0) -> int:
    """What participant ``rank`` sends; so in all of these."""
    return 0 if rank == root else count_bytes


def broadcast_bytes(count_bytes: int, size: int, rank: int, root: int = 0) -> int:
    return count_bytes * len(family(rank, size, root)[1])


def scatter_bytes(count_bytes: int, size: int, rank: int, root: int = 0) -> int:
    return count_bytes - part_sizes(count_bytes, size)[root] if rank == root else 0


def gather_bytes(count_bytes: int, size: int, rank: int, root: int = 0) -> int:
    return 0 if rank == root else part_sizes(count_bytes, size)[rank]


def all_to_all_bytes(count_bytes: int, size: int, rank: int) -> int:
    """All but its own part."""
    return count_bytes - count_bytes // size


def gradient_bytes(layouts: Sequence[Layout], codec: CodecSpec | str | None = None) -> int:
    """What one gradient takes on the wire to all servers, without headers.

    Exact for every codec but ``threshold``, whose messages depend on the values.
    """
    if codec is None:
        return parameter_bytes(layouts)
    spec = parse_codec(codec) if isinstance(codec, str) else codec
    total = 0
    for layout in layouts:
        for shard in range(len(layout.shards)):
            low, high = layout.bounds(shard)
            zeros = torch.zeros(high - low, dtype=layout.dtype)
            total += make_codec(spec, parts_of(layout, shard), seed=0).encode(zeros).nbytes
    return total


def parameter_bytes(layouts: Sequence[Layout]) -> int:
    """What all parameters take on the wire from all servers, without headers."""
    return sum(layout.size * layout.dtype.itemsize for layout in layouts)


def push_and_pull_bytes(layouts: Sequence[Layout], codec: CodecSpec | str | None = None) -> int:
    """One push that is answered with the new parameters: both directions together."""
    return gradient_bytes(layouts, codec) + parameter_bytes(layouts)
