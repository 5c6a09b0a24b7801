"""What messages take on the wire, by formulas: what is sent is compared with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from phalanx.core.spec.codecs import CodecSpec, parse_codec
from phalanx.sync.codec.make import make_codec, parts_of
from phalanx.sync.state.layout import Layout


def gradient_bytes(layouts: Sequence[Layout], codec: CodecSpec | str | None = None) -> int:
    """What one gradient takes on the wire to all servers, without headers.

    Exact for every codec but ``threshold``, whose messages depend on the values.
    """
    if codec is None:
        return sum(layout.size * layout.dtype.itemsize for layout in layouts)
    spec = parse_codec(codec) if isinstance(codec, str) else codec
    total = 0
    for layout in layouts:
        for shard in range(len(layout.shards)):
            low, high = layout.bounds(shard)
            zeros = torch.zeros(high - low, dtype=layout.dtype)
            total += make_codec(spec, parts_of(layout, shard), seed=0).encode(zeros).nbytes
    return total
