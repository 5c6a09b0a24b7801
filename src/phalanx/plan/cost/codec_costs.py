"""Estimates how much a codec sends of a gradient, and how long encoding and decoding take."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.spec.codecs import CodecSpec

SPEED = {
    "fp16": 0.40e9,
    "bf16": 3.7e9,
    "int8": 1.39e9,
    "int4": 1.03e9,
    "topk": 1.39e9,
    "threshold": 0.85e9,
    "powersgd": 1.26e9,
}
"""Bytes a second of float32 that one core encodes and decodes again (``python -m benchmarks
codecs``, 2-core ARM machine, 16 MB of normal noise)."""
SPEED_OF_OTHERS = 0.5e9


@dataclass(frozen=True)
class CodecCost:
    ratio: float = 1.0
    """Bytes on the wire for a byte of the gradient."""
    coding: float = 0.0
    """Seconds to encode a byte of it; decoding takes as long."""
    error: float = 0.5
    """Error as a share of the seconds: other processors encode at other speeds. It is larger if the
    ratio depends on the values or on the shapes."""


def codec_cost(codec: CodecSpec | None) -> CodecCost:
    if codec is None:
        return CodecCost()
    options = codec.options
    scale = 4 / int(options.get("block", 256))
    ratios = {
        "fp16": 0.5,
        "bf16": 0.5,
        "int8": (1.0 + scale) / 4,
        "int4": (0.5 + scale) / 4,
        "topk": min(1.0, 2 * float(options.get("ratio", 0.01))),  # an index with each value
        # A square matrix of a million values becomes two thin ones; vectors are sent whole.
        "powersgd": min(1.0, 2 * int(options.get("rank", 4)) / 1000),
    }
    certain = codec.name in ratios and codec.name != "powersgd"
    seconds = 1.0 / SPEED.get(codec.name, SPEED_OF_OTHERS)
    return CodecCost(ratios.get(codec.name, 1.0), seconds / 2, 0.5 if certain else 1.0)
