"""Sparsification: only large values are sent, exactly; error feedback keeps the others.

Top-k after Aji and Heafield 2017 and Stich et al. 2018 (*Sparsified SGD with Memory*); the fixed
threshold after Strom 2015. A message is the positions (int32) and the values, or all values where
that is smaller. NaN counts as larger than everything, so that it is always sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from phalanx.sync.codec.codec import Part, Payload, Stateless

_INDEX = torch.int32
_STRIDE = 61  # between sampled values: a prime, so that it does not follow a matrix's columns
_WORTH_SAMPLING = 1 << 16


class _Sparse(Stateless, ABC):
    # The error feedback, not this codec, remembers what was not sent.

    def encode(self, flat: Tensor) -> Payload:
        chosen = self._choose(flat)
        index_type = _INDEX if flat.numel() <= torch.iinfo(_INDEX).max else torch.int64
        sparse = chosen.numel() * (index_type.itemsize + flat.element_size())
        if sparse >= flat.numel() * flat.element_size():
            return Payload((flat.clone(),))
        return Payload((chosen.to(index_type), flat.index_select(0, chosen)))

    def decode(self, payload: Payload, out: Tensor) -> None:
        if len(payload.tensors) == 1:
            out.copy_(payload.tensors[0])
            return
        index, values = payload.tensors
        out.zero_().index_copy_(0, index.long(), values.to(out.dtype))

    @abstractmethod
    def _choose(self, flat: Tensor) -> Tensor: ...


class TopK(_Sparse):
    """Sends the ``ratio`` of values that are largest in magnitude; at least one."""

    def __init__(self, parts: Sequence[Part], seed: int, ratio: float = 0.01) -> None:
        self._ratio = ratio

    def _choose(self, flat: Tensor) -> Tensor:
        count = min(flat.numel(), max(1, int(flat.numel() * self._ratio)))
        return largest(flat.abs(), count)


class Threshold(_Sparse):
    """Sends the values whose magnitude is at least ``value``."""

    def __init__(self, parts: Sequence[Part], seed: int, value: float = 0.001) -> None:
        self._value = value

    def _choose(self, flat: Tensor) -> Tensor:
        # torch refuses a threshold beyond the type's range.
        return _not_below(flat.abs(), min(self._value, torch.finfo(flat.dtype).max))


def largest(magnitudes: Tensor, count: int) -> Tensor:
    """Return the places of the ``count`` largest values, exactly.

    In a long tensor a sample tells which values are candidates: looking only among those takes a
    seventh of the time.
    """
    if magnitudes.numel() < _WORTH_SAMPLING or 4 * count > magnitudes.numel():
        return magnitudes.topk(count, sorted=False).indices
    sample = magnitudes[::_STRIDE]
    generous = min(sample.numel(), 16 + int(1.25 * count / _STRIDE))
    candidates = _not_below(magnitudes, float(sample.topk(generous).values[-1]))
    if candidates.numel() < count:
        return magnitudes.topk(count, sorted=False).indices
    among = magnitudes.index_select(0, candidates).topk(count, sorted=False).indices
    return candidates.index_select(0, among)


def _not_below(magnitudes: Tensor, least: float) -> Tensor:
    """Return the places where values are at least ``least``, or NaN."""
    below = magnitudes.lt(least).numpy()
    return torch.from_numpy(np.flatnonzero(np.logical_not(below, out=below)))
