"""Gradients of a GPU that go to other hosts while it computes the rest of them.

A backward pass is asked for long before the GPU is through with it. So pieces are copied on the
GPU first, then to memory of the host in a stream beside the computation, and a thread waits for
each copy and lets it go.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import torch
from torch import Tensor

from phalanx.core.background import BackgroundThread
from phalanx.sync.reduce.early_gradients import EarlyGradients
from phalanx.sync.reduce.local_pieces import Outlet
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.staging import Staging

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types whose numbers are equal only if their bits are, by their bytes."""


class Courier(Outlet):
    """Brings pieces of ``flat`` to ``home``, in memory of the host; they go on by ``way``."""

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
        """Until all that was ready has been let go."""
        while self._under_way:
            self._under_way.pop(0).result()

    def renew(self) -> None:
        self.wait()
        self._low = len(self._flat)
        self._way.renew()


class EarlyFromDevice(EarlyGradients):
    """They are copied into a buffer on the device, and compared there.

    ``home`` is where they go in memory of the host.
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
        self._courier.wait()  # others write where it would
        super().distrust()

    def _as_they_went(self, gone: set[int]) -> set[int]:
        """All of them or none: one question to the device."""
        self._courier.wait()
        if not gone:
            return gone
        self._gather.collect()
        low = self._places[min(gone)].start
        return gone if torch.equal(_bits(self._flat[low:]), _bits(self._now[low:])) else set()


def _bits(flat: Tensor) -> Tensor:
    return flat.view(_INTEGERS.get(flat.itemsize, torch.uint8))
