"""int8 and int4: whole multiples of a scale per block, rounded at random (unbiased).

After QSGD (Alistarh et al. 2017), with the largest magnitude of each block as its norm. A block's
scale is that magnitude divided by 127 (int8) or 7 (int4), sent as float32 (float64 for float64
values); what is decoded is less than one scale away from the value, and its mean is the value
(within 1/8192 of a scale, the resolution of the noise). A block that holds an infinity or a NaN
decodes to NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from phalanx.sync.codec.codec import Part, Payload, make_generator, restore, working_dtype

CHUNK = 1 << 18  # values at a time: enough to make calls cheap, few enough for the cache
_ABOVE_ZERO = 256  # makes codes positive; a multiple of 16 and 256, it leaves their low bits alone
LEVELS = 1 << 12
"""Levels of noise: 1/8192 or more from 0 and 1, so that float32 cannot round it beyond these."""
POSITIONS = 16 * LEVELS
_SEED = 0x5EED


@lru_cache(maxsize=8)
def noise_table(reach: int, base: float, dtype: torch.dtype) -> Tensor:
    """Return noise between ``base`` and ``base`` + 1: ``reach`` values from any of POSITIONS on.

    One table serves the whole process: 4096 evenly spaced levels, 16 times each, shuffled once. A
    message reads it from random positions, so that every value meets every level equally often.
    Drawing fresh numbers would take longer than everything else that a codec does.
    """
    generator = torch.Generator().manual_seed(_SEED)
    shuffled = torch.randperm(POSITIONS, generator=generator) % LEVELS
    table = (shuffled.double().add_(0.5).div_(LEVELS) + base).to(dtype)
    return table.repeat(1 + -(-reach // POSITIONS))[: POSITIONS + reach].clone()


@dataclass(frozen=True)
class _Span:
    """Blocks of one width that are encoded together, and the place of their codes on the wire."""

    start: int
    rows: int
    width: int
    block: int
    wire: int
    wire_end: int

    @property
    def end(self) -> int:
        return self.start + self.rows * self.width

    @property
    def blocks(self) -> slice:
        return slice(self.block, self.block + self.rows)


@lru_cache(maxsize=64)
def _cut(size: int, block: int, per_byte: int) -> tuple[_Span, ...]:
    spans: list[_Span] = []
    start = wire = 0
    while start < size:
        rows = min(max(1, CHUNK // block), (size - start) // block) or 1
        width = min(block, size - start)
        wire_end = wire + -(-rows * width // per_byte)
        spans.append(_Span(start, rows, width, start // block, wire, wire_end))
        start, wire = spans[-1].end, wire_end
    return tuple(spans)


class _Quantised(ABC):
    levels: ClassVar[int]
    per_byte: ClassVar[int]

    def __init__(self, parts: Sequence[Part], seed: int, block: int = 256) -> None:
        self._block = block
        self._reach = max(block, CHUNK)
        self._generator = make_generator(seed)
        self._numbers = torch.empty(0)
        self._codes = torch.empty(0, dtype=torch.int32)

    def encode(self, flat: Tensor) -> Payload:
        dtype = working_dtype(flat.dtype)
        spans = self._prepare(flat.numel(), dtype)
        noise = noise_table(self._reach, _ABOVE_ZERO, dtype)
        places = torch.randint(POSITIONS, (len(spans),), generator=self._generator).tolist()
        scales = torch.empty(-(-flat.numel() // self._block), dtype=dtype)
        wire = torch.empty(spans[-1].wire_end if spans else 0, dtype=torch.int8)
        for span, place in zip(spans, places, strict=True):
            count = span.end - span.start
            values = flat[span.start : span.end].to(dtype).view(span.rows, span.width)
            numbers = self._numbers[:count].view_as(values)
            inverse = _measure(values, self.levels, scales[span.blocks])
            uniform = noise[place : place + count].view_as(values)
            torch.addcmul(uniform, values, inverse, out=numbers)
            # All numbers are positive here, so that cutting off the fraction rounds down.
            codes = self._codes[:count].copy_(self._numbers[:count])
            self._pack(codes, wire[span.wire : span.wire_end])
        return Payload((wire, scales))

    def decode(self, payload: Payload, out: Tensor) -> None:
        wire, scales = payload.tensors
        for span in self._prepare(out.numel(), scales.dtype):
            target = out[span.start : span.end]
            direct = out.dtype == scales.dtype
            numbers = target if direct else self._numbers[: span.end - span.start]
            self._unpack(wire[span.wire : span.wire_end], numbers)
            numbers.view(span.rows, span.width).mul_(scales[span.blocks].unsqueeze(1))
            if not direct:
                target.copy_(numbers)

    def export_state(self) -> dict[str, Tensor]:
        return {"generator": self._generator.get_state()}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        saved = self._generator.get_state()
        restore(state, "generator", saved)
        self._generator.set_state(saved)

    def _prepare(self, size: int, dtype: torch.dtype) -> tuple[_Span, ...]:
        """Make the spans of ``size`` values, with scratch memory for the longest."""
        spans = _cut(size, self._block, self.per_byte)
        longest = max((span.end - span.start for span in spans), default=0)
        if self._numbers.numel() < longest or self._numbers.dtype != dtype:
            self._numbers = torch.empty(longest, dtype=dtype)
            self._codes = torch.empty(longest, dtype=torch.int32)
        return spans

    @abstractmethod
    def _pack(self, codes: Tensor, wire: Tensor) -> None: ...

    @abstractmethod
    def _unpack(self, wire: Tensor, numbers: Tensor) -> None: ...


def _measure(values: Tensor, levels: int, scales: Tensor) -> Tensor:
    """Write each row's scale; return 1 / scale as a column."""
    # aminmax and the infinity norm give the same, at three times the cost.
    torch.maximum(values.amax(1), values.amin(1).neg_(), out=scales)
    # Multiply by 1 / levels: after a division, the largest float would decode to infinity.
    scales.mul_(1 / levels).clamp_min_(torch.finfo(scales.dtype).tiny)
    return scales.reciprocal().unsqueeze(1)


class Int8(_Quantised):
    levels = 127
    per_byte = 1

    def _pack(self, codes: Tensor, wire: Tensor) -> None:
        wire.copy_(codes)

    def _unpack(self, wire: Tensor, numbers: Tensor) -> None:
        numbers.copy_(wire)


class Int4(_Quantised):
    """Packs two codes in a byte: the first half of a span in the four low bits."""

    levels = 7
    per_byte = 2

    def _pack(self, codes: Tensor, wire: Tensor) -> None:
        low, high = codes[: wire.numel()], codes[wire.numel() :]
        low.bitwise_and_(15)
        low[: high.numel()].bitwise_or_(high.bitwise_left_shift_(4))
        wire.copy_(low)

    def _unpack(self, wire: Tensor, numbers: Tensor) -> None:
        low, high = numbers[: wire.numel()], numbers[wire.numel() :]
        low.copy_((wire << 4) >> 4)
        high.copy_(wire[: high.numel()] >> 4)
