"""When which part of a gradient is there: the rest of it is still being computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor
from torch.utils.hooks import RemovableHandle

PIECES = 16


class Readiness:
    """Of the step in hand; watching costs time, so that such a step is not measured otherwise."""

    def __init__(self, parameters: Sequence[Tensor], now: Callable[[], float]) -> None:
        self._parameters, self._now = parameters, now
        self._hooks: list[RemovableHandle] = []
        self._times: dict[Tensor, float] = {}
        self._began = 0.0
        self.pieces: list[tuple[float, float]] = [(1.0, 1.0)]

    def begin(self) -> None:
        """The data are there."""
        self._times, self._began = {}, self._now()
        if not self._hooks:
            leaves = (p for p in self._parameters if p.requires_grad and p.is_leaf)
            self._hooks = [p.register_post_accumulate_grad_hook(self._note) for p in leaves]

    def _note(self, parameter: Tensor) -> None:
        self._times[parameter] = self._now()

    def end(self, ready: float) -> None:
        """The whole gradient is there."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        whole = ready - self._began
        if whole > 0 and self._times:
            shares = {p: (moment - self._began) / whole for p, moment in self._times.items()}
            found = [(p.numel() * p.element_size(), shares.get(p, 1.0)) for p in self._parameters]
            sizes, times = zip(*sorted(found, key=lambda one: one[1]), strict=True)
            # Pieces of the same size, each ready when its last byte is.
            through = np.cumsum(sizes) / sum(sizes)
            last = np.searchsorted(through, np.arange(1, PIECES + 1) / PIECES - 1e-9)
            self.pieces = [(1 / PIECES, min(1.0, max(0.0, times[i]))) for i in last]
