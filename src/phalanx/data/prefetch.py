"""The next items are prepared in the background while this one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch

from phalanx.data.structure import map_tensors, tensors_in

T = TypeVar("T")
_POLL_SECONDS = 0.05
_JOIN_SECONDS = 2.0


def prefetch(iterable: Iterable[T], depth: int = 2) -> Iterator[T]:
    """The items of ``iterable``, at most ``depth`` of them made ahead by a thread.

    An exception of ``iterable`` arrives here in its turn. Closing this generator ends the thread.
    """
    filler = _Filler(iterable, depth)
    filler.thread.start()
    try:
        yield from filler.items()
    finally:
        filler.stop()


class _Filler(Generic[T]):
    def __init__(self, iterable: Iterable[T], depth: int) -> None:
        self._iterable = iterable
        # (item,) is an item, an exception is the last word, None is the end.
        self._queue: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(max(1, depth))
        self._stopping = threading.Event()
        self.thread = threading.Thread(target=self._fill, name="phalanx-prefetch", daemon=True)

    def items(self) -> Iterator[T]:
        while True:
            entry = self._queue.get()
            if entry is None:
                return
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]

    def stop(self) -> None:
        self._stopping.set()
        while True:  # Makes room, so that a thread that waits to put sees the order at once.
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        # Bounded: a source that hangs must not hang its consumer; the thread is a daemon.
        self.thread.join(_JOIN_SECONDS)

    def _fill(self) -> None:
        last: BaseException | None = None
        try:
            iterator = iter(self._iterable)
            try:
                self._put_all(iterator)
            finally:
                _close(iterator)
        except BaseException as error:
            last = error
        self._put(last)

    def _put_all(self, iterator: Iterator[T]) -> None:
        for item in iterator:
            if not self._put((item,)):
                return

    def _put(self, entry: tuple[T] | BaseException | None) -> bool:
        while not self._stopping.is_set():
            try:
                self._queue.put(entry, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False


def move(value: Any, device: torch.device, *, pin: bool = False) -> Any:
    """``value`` with every tensor in it on ``device``; whatever holds them keeps its type."""
    source = _pin(value) if pin else value
    return map_tensors(
        source,
        lambda tensor: tensor.to(device, non_blocking=pin),
        lambda other: other.to(device) if callable(getattr(other, "to", None)) else other,
    )


def pinned(iterable: Iterable[T]) -> Iterator[T]:
    """The items of ``iterable`` in memory that a GPU reads directly: made so beside the training,
    which would spend its own time on it."""
    iterator = iter(iterable)
    try:
        for item in iterator:
            yield _pin(item)
    finally:
        _close(iterator)


def _pin(value: Any) -> Any:
    return map_tensors(value, lambda t: t.pin_memory() if t.device.type == "cpu" else t)


def prefetch_to(device: torch.device | str, iterable: Iterable[T]) -> Iterator[T]:
    """The items of ``iterable`` on ``device``; a GPU's are copied while it still computes."""
    target = torch.device(device)
    iterator = iter(iterable)
    try:
        if target.type == "cuda":
            yield from _copied_ahead(target, iterator)
        else:
            for item in iterator:
                yield move(item, target)
    finally:
        _close(iterator)


def _close(iterator: Iterator[Any]) -> None:
    """End a generator now, not when it is collected."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _copied_ahead(device: torch.device, iterator: Iterator[T]) -> Iterator[T]:
    copies = torch.cuda.Stream(device)
    waiting: tuple[T] | None = None
    for item in iterator:
        with torch.cuda.stream(copies):
            moved = move(item, device, pin=True)
        if waiting is not None:
            yield _handed_over(waiting, copies, device)
        waiting = (moved,)
    if waiting is not None:
        yield _handed_over(waiting, copies, device)


def _handed_over(waiting: tuple[T], copies: torch.cuda.Stream, device: torch.device) -> T:
    """Makes the computing stream wait for the copy, and the allocator keep its memory."""
    computing = torch.cuda.current_stream(device)
    computing.wait_stream(copies)
    for tensor in tensors_in(waiting[0]):
        tensor.record_stream(computing)
    return waiting[0]
