"""Says whether gradients can be used, and by which factor their norm is limited.

Optimizers and norms square them: a gradient whose square is not finite spoils weights or the
optimizer's state as surely as one that is not finite itself, but later and unnoticed. A sum of
squares tells whether all can be used; a closer look follows only when it does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_WIDE = (torch.float64, torch.complex128)
_LARGEST = (2.0**64, 2.0**512)
"""The magnitudes from which on squares are beyond float32, and beyond float64."""


def squares(tensors: Sequence[Tensor]) -> float:
    """Return a sum that is finite only if all squares are; it may overflow although they are."""
    tensors = [_values(tensor) for tensor in tensors]
    if not tensors:
        return 0.0
    if tensors[0].device.type == "cpu":
        return sum(_squares(tensor) for tensor in tensors)
    norms = torch._foreach_norm(tensors)  # one wait for the device, however many tensors
    return float(torch.stack([norm.float() for norm in norms]).sum())


def _values(tensor: Tensor) -> Tensor:
    """Return the values that a sparse tensor holds; it has no norm of its own."""
    return tensor if tensor.layout is torch.strided else tensor.coalesce().values()


def _squares(tensor: Tensor) -> float:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.itemsize > 2 and tensor.is_contiguous():
        flat = tensor.view(-1)
        return float(flat.dot(flat))
    return float(torch.linalg.vector_norm(tensor.float() if tensor.itemsize <= 2 else tensor))


def are_sound(tensors: Sequence[Tensor]) -> bool:
    """Whether all numbers and their squares are finite. Half types are squared in float32."""
    return math.isfinite(squares(tensors)) or all(
        bool((t.abs() < _LARGEST[t.dtype in _WIDE]).all()) for t in map(_values, tensors)
    )


def are_finite(tensors: Sequence[Tensor]) -> bool:
    finite = math.isfinite(squares(tensors))
    return finite or all(bool(_values(t).isfinite().all()) for t in tensors)


def squared_norm(tensors: Iterable[Tensor]) -> float:
    return sum(float(torch.linalg.vector_norm(tensor)) ** 2 for tensor in tensors)


def clip_factor(squared_norm: float, limit: float) -> float:
    """Return the factor that ``torch.nn.utils.clip_grad_norm_`` would use."""
    return min(1.0, limit / (math.sqrt(squared_norm) + 1e-6))
