"""When which part of a gradient is there: the rest of it is still being computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.utils.hooks import RemovableHandle

MOST_PIECES = 16


class Readiness:
    """Of the step in hand; watching costs time, so that such a step is not measured otherwise."""

    def __init__(self, parameters: Sequence[Tensor], now: Callable[[], float]) -> None:
        self._parameters, self._now = parameters, now
        self._hooks: list[RemovableHandle] = []
        self._times: dict[int, float] = {}
        self._began = 0.0
        self.pieces: list[tuple[float, float]] = [(1.0, 1.0)]

    def begin(self) -> None:
        """The data are there."""
        self._times, self._began = {}, self._now()
        if not self._hooks:
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(self._noting(index))
                for index, parameter in enumerate(self._parameters)
                if parameter.requires_grad and parameter.is_leaf
            ]

    def _noting(self, index: int) -> Callable[[Tensor], None]:
        def note(_: Tensor) -> None:
            self._times[index] = self._now()

        return note

    def end(self, ready: float) -> None:
        """The whole gradient is there."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        whole = ready - self._began
        if whole > 0 and self._times:
            sizes = [p.numel() * p.element_size() for p in self._parameters]
            found = [(sizes[i], (t - self._began) / whole) for i, t in self._times.items()]
            rest = sum(sizes) - sum(size for size, _ in found)
            self.pieces = _joined([*found, (rest, 1.0)] if rest else found)


def _joined(found: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Few pieces of about the same size, each ready when its last part is."""
    total, size, pieces = sum(size for size, _ in found), 0, list[tuple[float, float]]()
    ordered = sorted(found, key=lambda one: one[1])
    for number, (own, share) in enumerate(ordered):
        size += own
        if size * MOST_PIECES >= total or (size and number == len(ordered) - 1):
            pieces.append((size / total, min(1.0, max(0.0, share))))
            size = 0
    return pieces
