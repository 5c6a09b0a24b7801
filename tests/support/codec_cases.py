"""Tensors and matrices that codecs are tried on."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from phalanx.core.spec.codecs import parse_codec
from phalanx.sync.codec.codec import Codec, Part, Payload
from phalanx.sync.codec.make import make_codec

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
EVERY_CODEC = ("fp16", "bf16", "int8", "int4", "topk:ratio=0.2", "threshold", "powersgd:rank=1")
ROWS, COLUMNS, RAGGED = 12, 10, 7
SIZE = RAGGED + ROWS * COLUMNS + 3
MATRIX = (Part(0, SIZE - 3, COLUMNS, COLUMNS - RAGGED), Part(SIZE - 3, SIZE))
"""Seven values of a row that began elsewhere, twelve whole rows, and a vector of three."""


def make(text: str, seed: int = 7, parts: tuple[Part, ...] = ()) -> Codec:
    return make_codec(parse_codec(text), parts, seed)


def normal(size: int = SIZE, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def seen(codec: Codec, flat: Tensor) -> Tensor:
    """What a receiver makes of ``flat``."""
    out = torch.full_like(flat, 12345.0)
    codec.decode(codec.encode(flat), out)
    return out


def same(one: Payload, other: Payload) -> bool:
    return len(one.tensors) == len(other.tensors) and all(
        a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(one.tensors, other.tensors, strict=True)
    )


def finite_values(largest: int = 40) -> st.SearchStrategy[list[float]]:
    """Any finite float32: zeros, denormals and the largest among them."""
    value = st.floats(width=32, allow_nan=False, allow_infinity=False)
    return st.lists(value, max_size=largest)
