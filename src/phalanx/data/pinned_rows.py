"""Rows of tensors in the host's memory, gathered and copied to a GPU while it computes.

A gather by all threads of a machine takes them from the training beside it, and memory that is not
pinned is copied by the host itself. So a few threads gather into pinned buffers, used in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from phalanx.data.prefetch import prefetch
from phalanx.data.reader import TensorReader

K = TypeVar("K")
THREADS = 4
IN_HAND = 3
"""Buffers beside those that wait: one is filled, one is copied, and one was just taken."""


class Copies(Protocol):
    """The stream in which batches are copied."""

    def copy(self, rows: list[Tensor]) -> tuple[list[Tensor], Any]:
        """``rows`` on the device, and an event that comes when they are there."""

    def hand_over(self, rows: list[Tensor]) -> None:
        """What computes from now on waits for them."""


class CudaCopies:
    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def copy(self, rows: list[Tensor]) -> tuple[list[Tensor], torch.cuda.Event]:
        there = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            moved = [row.to(self._device, non_blocking=True) for row in rows]
            there.record(self._stream)
        return moved, there

    def hand_over(self, rows: list[Tensor]) -> None:
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._stream)
        for row in rows:
            row.record_stream(computing)  # the allocator keeps its memory until then


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
    """The batch of each (key, indices) on the device, its copy begun one batch early."""
    buffers = [_Buffer() for _ in range(ahead + IN_HAND)]

    def filled() -> Iterator[tuple[K, _Buffer, list[Tensor]]]:
        torch.set_num_threads(min(THREADS, torch.get_num_threads()))  # of this thread
        for turn, (key, indices) in enumerate(orders):
            buffer = buffers[turn % len(buffers)]
            rows = buffer.fill(reader.tensors, indices, pin) if len(indices) else []
            yield key, buffer, rows

    waiting: tuple[K, list[Tensor]] | None = None
    for key, buffer, rows in prefetch(filled(), ahead):
        moved, buffer.copied = copies.copy(rows)
        if waiting is not None:
            yield _handed_over(waiting, reader, copies)
        waiting = key, moved
    if waiting is not None:
        yield _handed_over(waiting, reader, copies)


def _handed_over(
    waiting: tuple[K, list[Tensor]], reader: TensorReader, copies: Copies
) -> tuple[K, Any]:
    key, rows = waiting
    copies.hand_over(rows)
    return key, reader.form(rows) if rows else None
