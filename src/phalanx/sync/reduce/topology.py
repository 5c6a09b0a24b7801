"""Which way sums go between hosts."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Path:
    """As the strategy's options say; ``None`` is the default."""

    topology: str | None = None
    through: str | None = None
    """``links`` (our own connections), ``gloo`` or ``nccl``."""
    device: torch.device | None = None
    """The GPU that NCCL uses."""
