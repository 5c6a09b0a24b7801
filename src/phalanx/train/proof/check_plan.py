"""Which steps of a training are done by one process as well, and where that tells nothing."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

LATER = 3
"""Steps of a check that is not the first one."""


class CheckPlan:
    """The first steps, and later some at random, which come ever further apart."""

    def __init__(self, first: int, seed: int) -> None:
        """``first``: the steps of the first check; with 0 there are no checks."""
        self._first, self._random = first, Random(seed)
        self.begins = 0 if first else -1
        """After how many steps the newest check that was asked for begins."""

    def length(self, step: int) -> int:
        """The steps of the check that begins after ``step``, asked for in turn; 0: none begins."""
        while self._first and self.begins < step:
            self.begins += 2 * self._first + int((self.begins + 8) * self._random.uniform(0.3, 1.0))
        if self.begins != step:
            return 0
        return min(LATER, self._first) if step else self._first


def why_parts_differ(models: Sequence[nn.Module]) -> str | None:
    """What of ``models`` makes workers that see parts of a batch differ from one process."""
    for module in (module for model in models for module in model.modules() if module.training):
        if isinstance(module, _BatchNorm):
            return "batch norm sees a part of each batch"
        if isinstance(module, _DropoutNd) and module.p > 0:
            return "dropout is each worker's own"
    return None
