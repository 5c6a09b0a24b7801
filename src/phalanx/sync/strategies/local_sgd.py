"""Local SGD: workers train apart and average their parameters every few batches.

Stich, "Local SGD converges fast and communicates little" (2019); with averages weighted by
samples it is the federated averaging of McMahan et al. (2017).
"""

from __future__ import annotations

from torch import Tensor

from phalanx.sync.strategies.local_training import Local
from phalanx.sync.strategy import StrategyContext


class LocalSGD(Local):
    def __init__(self, context: StrategyContext, every: int = 8) -> None:
        super().__init__(context)
        self.every = every

    def _move(self, layout: int, parameters: Tensor, mean: Tensor) -> None:
        parameters.add_(mean)
