"""What makes workers that see parts of a batch differ from one process by design."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


def why_parts_differ(models: Sequence[nn.Module]) -> str | None:
    """What of ``models`` makes workers that see parts of a batch differ from one process."""
    for module in (module for model in models for module in model.modules() if module.training):
        if isinstance(module, _BatchNorm):
            return "batch norm sees a part of each batch"
        if isinstance(module, _DropoutNd) and module.p > 0:
            return "dropout is each worker's own"
    return None
