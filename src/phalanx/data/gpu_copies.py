"""Copies batches from the host's memory to a GPU while that computes.

Copies of memory that is not pinned would block the host, and a gather with all threads would slow
down the training. So a few threads gather rows into pinned buffers, which are used in turn.
Other readers' batches are pinned by the thread that reads them, or by torch's own if a
``DataLoader`` asks for it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from phalanx.data.prefetch import FEW_THREADS, move, pinned, prefetch
from phalanx.data.reader import TensorReader
from phalanx.data.structure import map_tensors, tensors_in

K = TypeVar("K")
IN_HAND = 3
"""Buffers beside the queued ones: one being filled, one being copied, one just taken."""
LONG_ROW = 1 << 15
"""From so many elements on, torch copies one row at a time with all threads, which is slow."""
MOST_PARTS = 64


class CudaCopies:
    """The stream in which batches are copied."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, _copying_stream(device)

    def copy(self, value: Any) -> tuple[Any, torch.cuda.Event]:
        """Begin to copy ``value``; return the copy, and the event that ends it."""
        there = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            sent = map_tensors(value, lambda t: t.to(self._device, non_blocking=True))
            there.record(self._stream)
        return sent, there

    def hand_over(self, value: Any, there: torch.cuda.Event) -> Any:
        """Let the computing stream wait for the copy; return ``value`` for it."""
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(there)
        for tensor in tensors_in(value):
            if tensor.is_cuda:  # the allocator keeps its memory until then
                tensor.record_stream(computing)
        return move(value, self._device)  # objects that move themselves do so in this stream


@functools.cache
def _copying_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of copies to a GPU; one for all passes, as each stream has its own memory."""
    return torch.cuda.Stream(device)


def copied_ahead(
    items: Iterable[tuple[K, Any]], copies: CudaCopies, ahead: int
) -> Iterator[tuple[K, Any]]:
    """Yield each (key, batch) with the batch on the device. Its copy begins early: a thread makes
    and pins ``ahead`` batches, if that is not 0."""

    def begin(item: tuple[K, Any]) -> tuple[K, Any, Any]:
        key, batch = item
        return key, *copies.copy(batch)

    if ahead:
        begun = prefetch(pinned(items), ahead, begin=begin, threads=FEW_THREADS)
    else:
        begun = map(begin, pinned(items))
    for key, batch, there in begun:
        yield key, copies.hand_over(batch, there)


@dataclass
class _Buffer:
    rows: list[Tensor] = field(default_factory=list)
    copied: Any = None
    """The event after which the buffer may be filled again."""

    def fill(self, tensors: Iterable[Tensor], indices: Tensor, pin: bool) -> list[Tensor]:
        count = len(indices)
        if self.copied is not None:
            self.copied.synchronize()
        if not self.rows or len(self.rows[0]) < count:
            self.rows = [
                torch.empty((count, *t.shape[1:]), dtype=t.dtype, pin_memory=pin) for t in tensors
            ]
        return [
            _select(t, indices, rows[:count]) for t, rows in zip(tensors, self.rows, strict=True)
        ]


def _select(tensor: Tensor, indices: Tensor, out: Tensor) -> Tensor:
    """``tensor[indices]``; long rows are cut into parts, so that each thread copies other rows."""
    width = tensor[0].numel()
    short = (n for n in range(1, MOST_PARTS + 1) if width % n == 0 and width // n < LONG_ROW)
    if (parts := next(short, 1)) > 1:
        indices = (indices[:, None] * parts + torch.arange(parts)).view(-1)
        tensor, rows = tensor.view(-1, width // parts), out.view(-1, width // parts)
        torch.index_select(tensor, 0, indices, out=rows)
        return out
    return torch.index_select(tensor, 0, indices, out=out)


def batches_ahead(
    reader: TensorReader,
    orders: Iterable[tuple[K, Tensor]],
    copies: CudaCopies,
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
        sent, buffer.copied = copies.copy(rows)
        return key, sent, buffer.copied

    for key, sent, there in prefetch(filled(), ahead, begin=begin, threads=FEW_THREADS):
        rows = copies.hand_over(sent, there)
        yield key, reader.form(rows) if rows else None
