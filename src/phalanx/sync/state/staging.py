"""Copies between a GPU and memory of the host: few large copies through pinned memory, one wait.

A model has hundreds of gradients, and a copy of each to the host waits for the device by itself. So
they are gathered on the device first, and each contiguous part of host memory gets one copy. On a
CPU, these are plain copies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from phalanx.sync.state.layout import Layout

Copy = tuple[Tensor, Tensor]
"""A target and a source."""


class Gather(Protocol):
    def is_finite(self) -> bool: ...

    def collect(self, gone: Collection[int] = ...) -> bytes | None: ...


class Staging:
    """Copies between one worker's device and the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned: list[int] = []
        self._refused = False
        self._aside: torch.cuda.Stream | None = None
        self._followed: set[torch.cuda.Stream] = set()

    @property
    def away(self) -> bool:
        """Whether the device has memory of its own."""
        return self.device.type != "cpu"

    def host_buffer(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return memory of the host that the device reaches at full speed."""
        return torch.empty(count, dtype=dtype, pin_memory=self.device.type == "cuda")

    def fetch(self, copies: Iterable[Copy]) -> None:
        """Make all ``copies``, in either direction, and wait for them.

        They run in the calling thread's stream: after what it has asked the device to compute.
        """
        for target, source in copies:
            target.copy_(source, non_blocking=True)
        self.wait()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    @property
    def copies_aside(self) -> bool:
        """Whether the device can copy to the host and compute at the same time."""
        return self.device.type == "cpu" or (self.device.type == "cuda" and not self._refused)

    def follow(self) -> None:
        """Let the next copy aside follow all that the calling thread has asked the device for."""
        if self.device.type == "cuda":
            self._followed.add(torch.cuda.current_stream(self.device))

    def begin_copy(self, target: Tensor, source: Tensor) -> Callable[[], object]:
        """Copy after the work noted by :meth:`follow`, while the device computes what comes next;
        return a function that waits for the copy in any thread."""
        if self.device.type != "cuda":
            target.copy_(source)
            return lambda: None
        if self._aside is None:
            self._aside = torch.cuda.Stream(self.device)
        while self._followed:  # parts of a model may compute in streams of their own
            self._aside.wait_stream(self._followed.pop())
        with torch.cuda.stream(self._aside):
            target.copy_(source, non_blocking=True)
            source.record_stream(self._aside)
            event = torch.cuda.Event(blocking=True)  # or waiting would take a processor
            event.record()
        return partial(_wait_for, event, self.device)

    def pin(self, regions: Iterable[Tensor]) -> None:
        """Let the device read and write ``regions`` directly; where that fails, it is slower."""
        if self.device.type != "cuda":
            return
        cudart = torch.cuda.cudart()
        for region in regions:
            size = region.numel() * region.itemsize
            if not size:
                continue
            if int(cudart.cudaHostRegister(region.data_ptr(), size, 0)) == 0:
                self._pinned.append(region.data_ptr())
            else:
                self._refused = True
                # CUDA reports a failed call once more, at the next launch of anything.
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device=self.device)

    def unpin(self) -> None:
        """Unpin memory before it is freed: the device would go on writing to the old pages."""
        if not self._pinned:
            return
        torch.cuda.synchronize(self.device)
        while self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.pop())


class StagedCollector:
    """Gathers the gradients of one layout in ``flat``, on the device, then copies them to the host.

    ``gather`` fills ``flat``; ``shards`` are where its parts go in memory of the host.
    """

    def __init__(
        self,
        staging: Staging,
        gather: Gather,
        flat: Tensor,
        layout: Layout,
        shards: Sequence[Tensor],
    ) -> None:
        self._staging, self._gather, self._flat = staging, gather, flat
        self._places = layout.places
        self._copies = merged(
            [
                (shard, flat[low:high])
                for shard, (low, high) in zip(
                    shards, map(layout.bounds, range(len(shards))), strict=True
                )
                if high > low
            ]
        )

    def collect(self, gone: Collection[int] = ()) -> bytes | None:
        """Copy gradients; return ``None`` if every parameter had one, else a byte for each.

        The gradients from the first of ``gone`` to the last one are on the host already.
        """
        used = self._gather.collect()
        left = self._places[min(gone)].start if gone else len(self._flat)
        self._staging.fetch(_up_to(left, self._copies))
        return used

    def is_finite(self) -> bool:
        return self._gather.is_finite()


def _wait_for(event: torch.cuda.Event, device: torch.device) -> None:
    with torch.cuda.device(device):  # a new thread would open the first GPU
        event.synchronize()


def _up_to(stop: int, copies: Iterable[Copy]) -> Iterator[Copy]:
    """Limit copies to elements before number ``stop`` of the source's memory."""
    for target, source in copies:
        count = min(len(source), stop - source.storage_offset())
        if count > 0:
            yield target[:count], source[:count]


def merged(copies: Sequence[Copy]) -> list[Copy]:
    """Merge copies of flat memory that are neighbours in both source and target."""
    found: list[Copy] = []
    for target, source in copies:
        if found and _follows(found[-1][0], target) and _follows(found[-1][1], source):
            before = found.pop()
            target, source = _together(before[0], target), _together(before[1], source)
        found.append((target, source))
    return found


def _follows(before: Tensor, after: Tensor) -> bool:
    same = before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
    return same and before.data_ptr() + before.numel() * before.itemsize == after.data_ptr()


def _together(before: Tensor, after: Tensor) -> Tensor:
    return before.as_strided((before.numel() + after.numel(),), (1,))
