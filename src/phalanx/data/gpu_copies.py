"""Batches in the host's memory, copied to a GPU while it computes.

Memory that is not pinned is copied by the host itself. And a gather by all threads of a machine
takes them from the training beside it: rows of tensors are gathered by a few, into pinned buffers
that are used in turn. What other readers make is pinned by the thread that reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from phalanx.data.prefetch import FEW_THREADS, move, pinned, prefetch
from phalanx.data.reader import TensorReader
from phalanx.data.structure import map_tensors, tensors_in

T = TypeVar("T")
K = TypeVar("K")
IN_HAND = 3
"""Buffers beside those that wait: one is filled, one is copied, and one was just taken."""


class Copies(Protocol):
    """The stream in which batches are copied."""

    def copy(self, value: Any) -> tuple[Any, Any]:
        """``value`` on the device, and an event that comes when it is there."""

    def hand_over(self, value: Any, there: Any) -> Any:
        """``value``; what computes from now on waits until it is there."""


class CudaCopies:
    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, _copying_stream(device)

    def copy(self, value: Any) -> tuple[Any, torch.cuda.Event]:
        there = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            moved = map_tensors(value, lambda t: t.to(self._device, non_blocking=True))
            there.record(self._stream)
        return moved, there

    def hand_over(self, value: Any, there: torch.cuda.Event) -> Any:
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(there)
        for tensor in tensors_in(value):
            if tensor.is_cuda:  # the allocator keeps its memory until then
                tensor.record_stream(computing)
        return move(value, self._device)  # objects that move themselves do so in this stream


@functools.cache
def _copying_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all passes: each stream has memory of its own."""
    return torch.cuda.Stream(device)


def copied_ahead(items: Iterable[T], copies: Copies, ahead: int, threads: int) -> Iterator[T]:
    """Each of ``items`` on the device, its copy begun early: they are made and pinned by a thread,
    unless none of them is wanted ``ahead``."""
    if ahead:
        begun = prefetch(pinned(items), ahead, begin=copies.copy, threads=threads)
    else:
        begun = map(copies.copy, pinned(items))
    for moved, there in begun:
        yield copies.hand_over(moved, there)


@dataclass
class _Buffer:
    rows: list[Tensor] = field(default_factory=list)
    copied: Any = None
    """The event after which it may be filled again."""

    def fill(self, tensors: Iterable[Tensor], indices: Tensor, pin: bool) -> list[Tensor]:
        count = len(indices)
        if self.copied is not None:
            self.copied.synchronize()
        if not self.rows or len(self.rows[0]) < count:
            self.rows = [
                torch.empty((count, *t.shape[1:]), dtype=t.dtype, pin_memory=pin) for t in tensors
            ]
        return [
            torch.index_select(t, 0, indices, out=rows[:count])
            for t, rows in zip(tensors, self.rows, strict=True)
        ]


def batches_ahead(
    reader: TensorReader,
    orders: Iterable[tuple[K, Tensor]],
    copies: Copies,
    ahead: int,
    *,
    pin: bool = True,
) -> Iterator[tuple[K, Any]]:
    """The batch of each (key, indices) on the device, its copy begun early."""
    buffers = [_Buffer() for _ in range(ahead + IN_HAND)]

    def filled() -> Iterator[tuple[K, _Buffer, list[Tensor]]]:
        for turn, (key, indices) in enumerate(orders):
            buffer = buffers[turn % len(buffers)]
            rows = buffer.fill(reader.tensors, indices, pin) if len(indices) else []
            yield key, buffer, rows

    def begin(item: tuple[K, _Buffer, list[Tensor]]) -> tuple[K, list[Tensor], Any]:
        key, buffer, rows = item
        moved, buffer.copied = copies.copy(rows)
        return key, moved, buffer.copied

    for key, moved, there in prefetch(filled(), ahead, begin=begin, threads=FEW_THREADS):
        rows = copies.hand_over(moved, there)
        yield key, reader.form(rows) if rows else None
