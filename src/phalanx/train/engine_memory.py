"""Where memory that all workers of a training see comes from."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Memory(Protocol):
    def region(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """Memory that all workers of this training see, zero at first. Collective."""
