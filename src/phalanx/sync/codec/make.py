"""Makes the compressor that a spec names."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from phalanx.core.spec.codecs import CODECS, CodecSpec
from phalanx.sync.codec.codec import Codec, Part
from phalanx.sync.codec.feedback import Compressor, ErrorFeedback
from phalanx.sync.state.layout import Layout


def make_codec(spec: CodecSpec, parts: Sequence[Part], seed: int) -> Codec:
    codec: Codec = CODECS.get(spec.name)(parts, seed, **spec.options)
    return codec


def make_compressor(
    spec: CodecSpec, parts: Sequence[Part], size: int, dtype: torch.dtype, seed: int
) -> Compressor:
    """Make one stream's compressor; streams that are summed need different seeds."""
    codec = make_codec(spec, parts, seed)
    return ErrorFeedback(codec, size, dtype) if spec.traits.feedback else Compressor(codec)


def parts_of(layout: Layout, shard: int) -> tuple[Part, ...]:
    """Return the parameters in one shard, as positions within it."""
    low, _ = layout.bounds(shard)
    found = []
    for piece in layout.shards[shard]:
        place = layout.places[piece.parameter]
        longest = zip(place.shape, place.stride, strict=True)
        columns = max((stride for count, stride in longest if count > 1), default=1)
        offset = (piece.start - place.start) % columns
        found.append(Part(piece.start - low, piece.end - low, columns, offset))
    return tuple(found)
