"""The factor that limits a gradient's norm, as ``torch.nn.utils.clip_grad_norm_`` does it."""

from __future__ import annotations

import math


def clip_factor(squared_norm: float, limit: float) -> float:
    return min(1.0, limit / (math.sqrt(squared_norm) + 1e-6))
