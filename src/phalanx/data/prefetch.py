"""Prepares the next items in the background while the present one is used."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch

from phalanx.data.structure import map_tensors

T = TypeVar("T")
K = TypeVar("K")
FEW_THREADS = 4
"""How many torch uses to gather batches beside a training that drives a GPU."""
_POLL_SECONDS = 0.05
_JOIN_SECONDS = 2.0


def prefetch(
    iterable: Iterable[T],
    depth: int = 2,
    *,
    begin: Callable[[T], Any] | None = None,
    threads: int | None = None,
) -> Iterator[Any]:
    """The items of ``iterable``, at most ``depth`` of them made ahead by a thread.

    ``begin``: called with each item in the consumer's thread, before the previous one is yielded
    if it is ready then; its result replaces the item. ``threads``: how many torch may use, at most,
    where items are made. An exception of ``iterable`` arrives here in its turn. Closing this
    generator ends the thread.
    """
    filler = _Filler(iterable, depth, threads)
    filler.start()
    try:
        yield from filler.items(begin)
    finally:
        filler.stop()


class _Filler(Generic[T]):
    def __init__(self, iterable: Iterable[T], depth: int, threads: int | None) -> None:
        self._iterable, self._threads = iterable, threads
        # (item,) is an item, an exception is the last word, None is the end.
        self._queue: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(max(1, depth))
        self._begun, self._stopping = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._fill, name="phalanx-prefetch", daemon=True)

    def start(self) -> None:
        own = torch.get_num_threads()
        if self._threads is not None:
            self._threads = min(self._threads, own)
        self.thread.start()
        if self._threads is not None:
            self._begun.wait()
            torch.set_num_threads(own)  # later threads begin with the number that was set last

    def items(self, begin: Callable[[T], Any] | None) -> Iterator[Any]:
        begun: deque[Any] = deque()
        most = 1 if begin is None else 2
        while True:
            while begun and (len(begun) == most or self._queue.empty()):
                yield begun.popleft()
            entry = self._queue.get()
            if isinstance(entry, tuple):
                begun.append(entry[0] if begin is None else begin(entry[0]))
                continue
            yield from begun
            if entry is not None:
                raise entry
            return

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
        if self._threads is not None:
            torch.set_num_threads(self._threads)
            self._begun.set()
        try:
            iterator = iter(self._iterable)
            try:
                for item in iterator:
                    if not self._put((item,)):
                        break
            finally:
                _close(iterator)
        except BaseException as error:
            last = error
        self._put(last)

    def _put(self, entry: tuple[T] | BaseException | None) -> bool:
        while not self._stopping.is_set():
            try:
                self._queue.put(entry, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False


def move(value: Any, device: torch.device) -> Any:
    """``value`` with every tensor in it on ``device``; whatever holds them keeps its type."""
    return map_tensors(
        value,
        lambda tensor: tensor.to(device),
        lambda other: other.to(device) if callable(getattr(other, "to", None)) else other,
    )


def pinned(iterable: Iterable[tuple[K, Any]]) -> Iterator[tuple[K, Any]]:
    """Each (key, batch) of ``iterable``, the batch in memory that a GPU reads directly."""
    iterator = iter(iterable)
    try:
        for key, batch in iterator:
            yield key, _pin(batch)
    finally:
        _close(iterator)


def _pin(value: Any) -> Any:
    return map_tensors(
        value,
        lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor,
        lambda other: other.pin_memory() if callable(getattr(other, "pin_memory", None)) else other,
    )


def _close(iterator: Iterator[Any]) -> None:
    """End a generator now, not when it is collected."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
