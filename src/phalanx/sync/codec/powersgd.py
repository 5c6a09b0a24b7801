"""PowerSGD (Vogels, Karimireddy and Jaggi 2019): each matrix as a product of two thin ones.

One power iteration per message: P = orthogonalise(M Q), Q = Mᵀ P; P and Q are sent, and P Qᵀ is
what the receiver sees. Q is the start of the next message, so that the iterations add up over
time. In the paper the workers all-reduce P and Q and so share one basis. Here each worker has its
own, and receivers sum what they decode: this works under every strategy, also those where
workers never meet; the sum of n workers has a rank of up to n times ``rank``.

The whole rows of a part form its matrix. Ragged ends, vectors, and matrices that would not become
smaller are sent exactly. A matrix that holds an infinity or a NaN, or whose columns' norms are
beyond float32, is not finite when it is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.sync.codec.codec import Part, Payload, make_generator, restore, working_dtype


@dataclass(frozen=True)
class _Matrix:
    start: int
    rows: int
    columns: int

    @property
    def end(self) -> int:
        return self.start + self.rows * self.columns

    def view(self, flat: Tensor) -> Tensor:
        return flat[self.start : self.end].view(self.rows, self.columns)

    def shrinks(self, rank: int, element_size: int) -> bool:
        wide = max(element_size, torch.float32.itemsize)
        return rank * (self.rows + self.columns) * wide < self.rows * self.columns * element_size


class PowerSGD:
    """Sends factors of ``rank`` columns, in float32 (float64 for float64 values)."""

    def __init__(self, parts: Sequence[Part], seed: int, rank: int = 4) -> None:
        self._rank = rank
        generator = make_generator(seed)
        self._matrices = [m for m in _matrices(parts) if m.shrinks(rank, torch.float32.itemsize)]
        self._starts = [
            torch.randn(m.columns, rank, generator=generator, dtype=torch.float64)
            for m in self._matrices
        ]

    def encode(self, flat: Tensor) -> Payload:
        chosen = self._chosen(flat.dtype)
        rest = torch.cat([flat[:0], *_gaps([self._matrices[i] for i in chosen], flat)])
        factors: list[Tensor] = []
        for i in chosen:
            values = self._matrices[i].view(flat).to(working_dtype(flat.dtype))
            left, _ = torch.linalg.qr(values @ self._starts[i].to(values.dtype))
            right = values.T @ left
            factors += _plain(left), _plain(right)
            # Begin the next iteration where this one ended, unless a column is zero or not finite.
            # Only the columns' directions matter: scaled, they neither vanish nor overflow.
            peaks = right.abs().amax(0)
            if bool(torch.isfinite(peaks).all()) and bool((peaks > 0).all()):
                self._starts[i].copy_(right / peaks)
        return Payload((rest, *factors))

    def decode(self, payload: Payload, out: Tensor) -> None:
        rest, *factors = payload.tensors
        matrices = [self._matrices[i] for i in self._chosen(rest.dtype)]
        at = 0
        for gap in _gaps(matrices, out):
            gap.copy_(rest[at : at + gap.numel()])
            at += gap.numel()
        for matrix, left, right in zip(matrices, factors[::2], factors[1::2], strict=True):
            target = matrix.view(out)
            if target.dtype == left.dtype:
                torch.mm(left, right.T, out=target)
            else:
                target.copy_(left @ right.T)

    def export_state(self) -> dict[str, Tensor]:
        return {f"start.{i}": start.clone() for i, start in enumerate(self._starts)}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        for i, start in enumerate(self._starts):
            restore(state, f"start.{i}", start)

    def _chosen(self, dtype: torch.dtype) -> list[int]:
        size = dtype.itemsize
        return [i for i, m in enumerate(self._matrices) if m.shrinks(self._rank, size)]


def _matrices(parts: Sequence[Part]) -> Iterator[_Matrix]:
    for part in sorted(parts, key=lambda part: part.start):
        first = part.start + -part.offset % part.columns
        rows = (part.end - first) // part.columns
        if part.columns > 1 and rows > 1:
            yield _Matrix(first, rows, part.columns)


def _gaps(matrices: Sequence[_Matrix], flat: Tensor) -> Iterator[Tensor]:
    """Yield what lies before, between and after ``matrices``."""
    at = 0
    for matrix in matrices:
        yield flat[at : matrix.start]
        at = matrix.end
    yield flat[at:]


def _plain(factor: Tensor) -> Tensor:
    """Copy a factor row by row, also one column, which torch calls contiguous in any order."""
    return factor.clone(memory_format=torch.contiguous_format)
