"""What a codec sends of a gradient, and how long encoding and decoding take."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.spec.codecs import CodecSpec

INDEX_BYTES = 4
VALUE_BYTES = 4
SCALE_BYTES = 4
DEFAULT_BLOCK = 256
DEFAULT_TOPK = 0.01

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
ENCODING = 0.5
"""The part of that time that encoding takes; the rest is decoding."""
ERROR = 0.5
"""Other processors encode at other speeds, and these are one machine's."""


@dataclass(frozen=True)
class CodecCost:
    """``ratio``: bytes on the wire for a byte of the gradient; seconds for a byte of it."""

    ratio: float = 1.0
    encode: float = 0.0
    decode: float = 0.0
    certain: bool = True
    """Whether the ratio follows from the codec; some depend on the values or on the shapes."""


NO_CODEC = CodecCost()


def codec_cost(codec: CodecSpec | None) -> CodecCost:
    if codec is None:
        return NO_CODEC
    ratio = _ratio(codec)
    seconds = 1.0 / SPEED.get(codec.name, SPEED_OF_OTHERS)
    return CodecCost(
        ratio=1.0 if ratio is None else ratio,
        encode=ENCODING * seconds,
        decode=(1.0 - ENCODING) * seconds,
        certain=ratio is not None and codec.name != "powersgd",
    )


def _ratio(codec: CodecSpec) -> float | None:
    """``None``: it depends on the values."""
    if codec.name in ("fp16", "bf16"):
        return 0.5
    if codec.name in ("int8", "int4"):
        bits = 8 if codec.name == "int8" else 4
        block = int(codec.options.get("block", DEFAULT_BLOCK))
        return (bits / 8 + SCALE_BYTES / block) / VALUE_BYTES
    if codec.name == "topk":
        share = float(codec.options.get("ratio", DEFAULT_TOPK))
        return min(1.0, share * (INDEX_BYTES + VALUE_BYTES) / VALUE_BYTES)
    if codec.name == "powersgd":
        # Two thin matrices of a square one of a million values; vectors go whole.
        return min(1.0, 2.0 * int(codec.options.get("rank", 4)) / 1000)
    return None
