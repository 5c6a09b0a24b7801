"""Gradients that go to other hosts while the rest of them is still being computed.

What has gone cannot be called back, and until its step a script may do to a gradient what it
likes: add another pass, clip it, drop it. So at the step what has gone is compared with what is
there. Where they differ everybody is told, throws away what came, and exchanges once more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.core.errors import PeerLost
from phalanx.sync.collective.ahead import AheadSum
from phalanx.sync.layout import Layout, Place

LEAST = 256 << 10
"""Bytes of a piece, at least: what the hooks and the thread cost is more than smaller ones save."""
REST = 100
"""Steps without going ahead after it was in vain: whoever does so once, does it at each step."""

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def cuts_of(layout: Layout) -> list[int]:
    """Where the flat buffer is cut into pieces of whole parameters; from the end to its start."""
    cuts, end = [], layout.size
    for place in reversed(layout.places):
        if (end - place.start) * layout.dtype.itemsize >= LEAST:
            cuts.append(place.start)
            end = place.start
    if end:
        cuts.append(0)
    return cuts


class EarlyGradients:
    """Of one layout, whose gradients are summed in ``flat`` by ``ahead``."""

    def __init__(
        self, layout: Layout, parameters: Sequence[Tensor], flat: Tensor, ahead: AheadSum
    ) -> None:
        self._parameters, self._places, self._flat = parameters, layout.places, flat
        self._ahead, self._cuts = ahead, cuts_of(layout)
        # The first piece is complete with the last gradient only: it goes with the step itself.
        begin = self._cuts[-2] if len(self._cuts) > 1 else layout.size
        self.watched = [i for i, place in enumerate(layout.places) if place.start >= begin]
        self._targets = {i: layout.places[i].view(flat) for i in self.watched}
        self._resting = 0
        self._forget()

    def _forget(self) -> None:
        self._taken: set[int] = set()
        self._first = len(self._places)
        """From this parameter on all are taken."""
        self._gone, self._pieces = self._flat.numel(), 0
        """From here on it has gone, in so many pieces."""

    def take(self, index: int) -> None:
        """The parameter ``index`` has its gradient, of this pass."""
        gradient, place = self._parameters[index].grad, self._places[index]
        if self._resting or gradient is None or place.start >= self._gone:
            return
        if not _lies_like(gradient, place):
            return
        self._targets[index].copy_(gradient)
        self._taken.add(index)
        self._let_go()

    def _let_go(self) -> None:
        while self._first - 1 in self._taken:
            self._first -= 1
        while self._pieces < len(self._cuts) and self._cuts[self._pieces] >= self._ready:
            self._gone = self._cuts[self._pieces]
            self._pieces += 1
        try:
            self._ahead.ready(self._gone)
        except PeerLost:
            self._resting = REST  # the step itself will say so, where it can be said

    @property
    def _ready(self) -> int:
        taken = self._first < len(self._places)
        return self._places[self._first].start if taken else self._flat.numel()

    def settle(self) -> tuple[set[int], bool]:
        """At the step: whose gradients have gone as they are now, and whether others went too."""
        gone = {i for i in self.watched if self._places[i].start >= self._gone}
        same = {i for i in gone if self._is_as_it_went(i)}
        stale = len(same) < len(gone)
        self._resting = REST if stale else max(0, self._resting - 1)
        self._forget()
        return same, stale

    def _is_as_it_went(self, index: int) -> bool:
        gradient, place = self._parameters[index].grad, self._places[index]
        if gradient is None or not _lies_like(gradient, place):
            return False
        sent = self._flat.data_ptr() + place.start * self._flat.element_size()
        size = gradient.numel() * gradient.element_size()
        return not _memcmp(sent, gradient.data_ptr(), size)


def _lies_like(gradient: Tensor, place: Place) -> bool:
    """Whether the gradient's bytes are those of the flat buffer, in the same order."""
    return gradient.layout == torch.strided and gradient.stride() == place.stride
