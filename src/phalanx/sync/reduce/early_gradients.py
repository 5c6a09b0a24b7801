"""Sends gradients to other hosts while the rest of them is still being computed.

Until the step a script may change a gradient that was sent already: add another backward pass,
clip it, drop it. So the step compares the gradients with the numbers that were sent. If they
differ, all hosts throw away what they received early, and exchange once more.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from phalanx.core.background import BackgroundThread
from phalanx.sync.state.gradients import Scale, get_grad
from phalanx.sync.state.layout import Layout, ParameterPlace
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.staging import Staging

LEAST = 256 << 10
"""Least bytes of a piece: smaller ones save less than the hooks and the thread cost."""
REST = 100
"""Steps without early sending after it was in vain: scripts mostly do the same at each step."""

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def cuts_of(layout: Layout) -> list[int]:
    """Return where to cut the flat buffer into pieces of whole parameters, from its end on."""
    cuts, end = [], layout.size
    for place in reversed(layout.places):
        if (end - place.start) * layout.dtype.itemsize >= LEAST:
            cuts.append(place.start)
            end = place.start
    if end:
        cuts.append(0)
    return cuts


class Outlet(ABC):
    """The way by which a worker's gradients are sent early."""

    @abstractmethod
    def ready(self, low: int) -> None:
        """Say that gradients from ``low`` on may be sent. The step reports a lost peer."""

    @abstractmethod
    def renew(self) -> None:
        """Prepare for the next step, of which nothing is ready yet."""


class EarlyGradients:
    """Copies the gradients of one layout into ``flat``, from which ``way`` sends them."""

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[Tensor],
        flat: Tensor,
        way: Outlet,
        scale: Scale | None = None,
    ) -> None:
        self._parameters, self._places, self._flat = parameters, layout.places, flat
        self._scale = scale or Scale()
        self._way, self._cuts = way, cuts_of(layout)
        # The buffer's first piece is complete with the last gradient only: the step sends it.
        begin = self._cuts[-2] if len(self._cuts) > 1 else layout.size
        self.watched = [i for i, place in enumerate(layout.places) if place.start >= begin]
        self._targets = {i: layout.places[i].view(flat) for i in self.watched}
        self._resting = 0
        self._forget()

    def _forget(self) -> None:
        self._taken: set[int] = set()
        self._first = len(self._places)
        """The gradients of this parameter and of all after it have been copied."""
        self._gone, self._pieces = self._flat.numel(), 0
        """Where the numbers that have been sent begin, and how many pieces they are."""
        self.stale = False
        """Whether it is known that some of what was sent has changed since."""
        self._way.renew()

    @torch.no_grad()
    def take(self, index: int) -> None:
        """Copy the gradient of parameter ``index``, which this backward pass has made."""
        gradient, place = get_grad(self._parameters[index]), self._places[index]
        if self._resting or self.stale or gradient is None or self._has_gone(place):
            return
        if not self._lies_like(gradient, place):
            return
        self._write(gradient, self._targets[index])
        self._taken.add(index)
        self._let_go()

    def _write(self, gradient: Tensor, target: Tensor) -> None:
        if self._scale.value == 1.0:
            target.copy_(gradient)
        elif self._scale.value == 0.0:  # zero, even if it is not finite: it does not count
            target.zero_()
        else:
            torch.mul(gradient, self._scale.value, out=target)

    def _let_go(self) -> None:
        while self._first - 1 in self._taken:
            self._first -= 1
        while self._pieces < len(self._cuts) and self._cuts[self._pieces] >= self._ready:
            self._gone = self._cuts[self._pieces]
            self._pieces += 1
        self._way.ready(self._gone)

    @property
    def _ready(self) -> int:
        taken = self._first < len(self._places)
        return self._places[self._first].start if taken else self._flat.numel()

    def _has_gone(self, place: ParameterPlace) -> bool:
        return place.end > self._gone

    def distrust(self) -> None:
        """Treat all sent gradients as changed: others wrote to the memory for their comparison."""
        self.stale = self._gone < self._flat.numel()

    def settle(self) -> tuple[set[int], bool]:
        """Return the parameters whose gradients were sent as they are now, and whether others were.

        A script may change and offer gradients again before the step, which calls ``renew``.
        """
        gone = {i for i in self.watched if self._has_gone(self._places[i])}
        same = set() if self.stale else self._as_they_went(gone)
        self.stale = len(same) < len(gone)
        return same, self.stale

    def renew(self) -> None:
        """Begin the next step, of which nothing has been sent yet."""
        self._resting = REST if self.stale else max(0, self._resting - 1)
        self._forget()

    def _as_they_went(self, gone: set[int]) -> set[int]:
        return {i for i in gone if self._is_as_it_went(i)}

    def _is_as_it_went(self, index: int) -> bool:
        gradient, place = get_grad(self._parameters[index]), self._places[index]
        if gradient is None or not self._lies_like(gradient, place):
            return False
        if self._scale.value == 0.0:
            return True
        if self._scale.value != 1.0:
            return torch.equal(gradient * self._scale.value, self._targets[index])
        sent = self._flat.data_ptr() + place.start * self._flat.element_size()
        size = gradient.numel() * gradient.element_size()
        return not _memcmp(sent, gradient.data_ptr(), size)

    def _lies_like(self, gradient: Tensor, place: ParameterPlace) -> bool:
        """Whether the gradient's bytes have the same meaning and order as in the flat buffer."""
        return (
            gradient.layout == torch.strided
            and gradient.dtype == self._flat.dtype
            and gradient.stride() == place.stride
            and not gradient.is_conj()  # else its bytes are not its numbers
            and not gradient.is_neg()
        )


_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of each size, to compare bytes: two numbers are equal only if all their bits are."""


class Courier(Outlet):
    """Copies pieces of ``flat`` to ``home``, in host memory, from which ``way`` sends them."""

    def __init__(self, staging: Staging, flat: Tensor, home: Tensor, way: Outlet) -> None:
        self._staging, self._flat, self._home, self._way = staging, flat, home, way
        self._thread = BackgroundThread("phalanx-courier")
        self._under_way: list[Future[None]] = []
        self._low = len(flat)

    def ready(self, low: int) -> None:
        if low < self._low:
            piece, self._low = slice(low, self._low), low
            arrived = self._staging.begin_copy(self._home[piece], self._flat[piece])
            self._under_way.append(self._thread.submit(self._deliver, low, arrived))

    def _deliver(self, low: int, arrived: Callable[[], object]) -> None:
        arrived()
        self._way.ready(low)

    def wait(self) -> None:
        """Wait until all pieces that were ready have been copied and passed to ``way``."""
        while self._under_way:
            self._under_way.pop(0).result()

    def renew(self) -> None:
        self.wait()
        self._low = len(self._flat)
        self._way.renew()


class EarlyFromDevice(EarlyGradients):
    """Sends gradients of a GPU while it computes the rest of them.

    A backward pass is queued long before the GPU has computed it. So a piece is first copied on
    the GPU, where the step compares it, and then, in a stream beside the computation, to ``home``
    in host memory; a thread waits for each copy and has it sent.
    """

    def __init__(self, replica: Replica, home: Tensor, way: Outlet) -> None:
        layout, parameters = replica.layouts[0], replica.parameters[0]
        sent = torch.empty(layout.size, dtype=layout.dtype, device=replica.device)
        self._courier = Courier(replica.staging, sent, home, way)
        self._staging = replica.staging
        self._gather, self._now = replica.gather(0)
        super().__init__(layout, parameters, sent, self._courier, replica.scale)

    def _write(self, gradient: Tensor, target: Tensor) -> None:
        super()._write(gradient, target)
        self._staging.follow()

    def distrust(self) -> None:
        self._courier.wait()  # others write to ``home`` as well
        super().distrust()

    def _as_they_went(self, gone: set[int]) -> set[int]:
        """Return the gradients that were sent unchanged: all or none, by one comparison."""
        self._courier.wait()
        if not gone:
            return gone
        self._gather.collect()
        low = self._places[min(gone)].start
        return gone if torch.equal(_bits(self._flat[low:]), _bits(self._now[low:])) else set()


def _bits(flat: Tensor) -> Tensor:
    return flat.view(_INTEGERS.get(flat.itemsize, torch.uint8))
