"""Half precision: each value is rounded to the nearest number of 16 bits.

float16 has 11 significant bits: a relative error of at most 2^-11 between 6.1e-5 and 65504, an
absolute one of 2^-25 below. Larger values become infinite, and so are noticed. bfloat16 has 8
significant bits (2^-8) and the range of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from phalanx.sync.codec.codec import Part, Payload, Stateless


class _Half(Stateless):
    wire: ClassVar[torch.dtype]

    def __init__(self, parts: Sequence[Part], seed: int) -> None:
        """Ignore both arguments: rounding needs neither parameters' shapes nor random numbers."""

    def encode(self, flat: Tensor) -> Payload:
        return Payload((flat.to(self.wire, copy=True),))

    def decode(self, payload: Payload, out: Tensor) -> None:
        out.copy_(payload.tensors[0])


class Float16(_Half):
    wire = torch.float16


class BFloat16(_Half):
    wire = torch.bfloat16
