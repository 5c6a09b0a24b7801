"""Uniform noise for stochastic rounding, without drawing a random number per value.

One table serves the whole process: 4096 evenly spaced levels, 16 times each, shuffled once. A
message reads it from random positions, so that every value meets every level equally often.
Drawing fresh numbers would take longer than everything else that a codec does.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

LEVELS = 1 << 12
"""Noise keeps 1/8192 away from 0 and 1, so that float32 arithmetic cannot round it over them."""
POSITIONS = 16 * LEVELS
_SEED = 0x5EED


@lru_cache(maxsize=8)
def noise_table(reach: int, base: float, dtype: torch.dtype) -> Tensor:
    """Noise between ``base`` and ``base`` + 1; ``reach`` values from each of POSITIONS on."""
    generator = torch.Generator().manual_seed(_SEED)
    shuffled = torch.randperm(POSITIONS, generator=generator) % LEVELS
    table = (shuffled.double().add_(0.5).div_(LEVELS) + base).to(dtype)
    return table.repeat(1 + -(-reach // POSITIONS))[: POSITIONS + reach].clone()
