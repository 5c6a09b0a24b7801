"""Whether gradients are finite, and the factor that limits their norm.

A sum tells whether all numbers are finite; a closer look follows only when it is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def total(tensors: Sequence[Tensor]) -> float:
    """Finite only if all numbers are; it may overflow although they are."""
    if not tensors:
        return 0.0
    if tensors[0].device.type == "cpu":
        return sum(_sum(tensor) for tensor in tensors)
    norms = torch._foreach_norm(list(tensors))  # one wait for the device, however many there are
    return float(torch.stack([norm.float() for norm in norms]).sum())


def _sum(tensor: Tensor) -> float:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return float(tensor.sum() if tensor.itemsize > 2 else tensor.sum(dtype=torch.float32))


def are_finite(tensors: Sequence[Tensor]) -> bool:
    return math.isfinite(total(tensors)) or all(bool(t.isfinite().all()) for t in tensors)


def clip_factor(squared_norm: float, limit: float) -> float:
    """As ``torch.nn.utils.clip_grad_norm_`` does it."""
    return min(1.0, limit / (math.sqrt(squared_norm) + 1e-6))
