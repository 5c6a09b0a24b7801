"""Whether the losses of an adopted script are means or sums over the batch: as the first looks.

An explicit script declares it. Here every loss has to be of the kind of the first one, and all
workers have to have found the same kind: one with a single sample may not be able to tell.
"""

from __future__ import annotations

from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.train.engine.engine import Engine
from phalanx.train.guards.loss_kind import Counted, LossWatch, SumLossError

_MEAN, _SUM = 1, 2


class AdoptedLoss(LossWatch):
    def __init__(self, engine: Engine, kinds: Tensor) -> None:
        """``kinds``: what each worker has found, in memory that all see."""
        super().__init__(parts=engine.workers == 1)
        self._alone, self._rank = engine.workers == 1, engine.rank
        self._kinds, self._settled = kinds.numpy(), False
        self._kind = 0

    def looks(self, workers: int) -> bool:
        return workers > 1 or not self._kind

    def weight_of(self, error: Tensor, samples: int) -> Counted | None:
        try:
            counted = super().weight_of(error, samples)
        except SumLossError as found:
            if not found.whole or self._kind == _MEAN:
                raise
            if found.over is not None and not self._alone:
                raise InputError(
                    f"the loss is a sum divided by {found.over:g}, and it cannot be seen whether "
                    "that number depends on the batch",
                    "Say which it is: --loss mean if it grows with the samples of the batch, "
                    "--loss sum if it is a constant.",
                ) from None
            self._note(_SUM)
            return None
        except InputError:
            if not self._alone:  # one worker computes whatever it is
                raise
            counted = None
        if self.sums and samples > 1:
            raise InputError(
                "the script's losses are partly sums and partly means over the batch",
                "Make all of them means, or all of them sums.",
            )
        if not self._kind:
            self._note(_MEAN)
        return counted

    def _note(self, kind: int) -> None:
        self._kind = self._kinds[self._rank] = kind
        self.sums = kind == _SUM

    def check(self) -> None:
        if self._settled:
            return
        found = set(self._kinds.tolist())
        self._settled = 0 not in found
        if {_MEAN, _SUM} <= found:
            raise InputError(
                "the workers do not agree whether the loss is a mean or a sum over the batch",
                "Say which it is: --loss mean or --loss sum.",
            )
