"""The next items are prepared in the background while this one is used."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch

from phalanx.data.structure import map_tensors

T = TypeVar("T")
FEW_THREADS = 4
"""Of torch, that gather beside a training that drives a GPU."""
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

    ``begin``: called here with each item, before the item ahead of it is used where both are there
    by then; what it returns is yielded. ``threads``: of torch, at most, beside this one. An
    exception of ``iterable`` arrives here in its turn. Closing this generator ends the thread.
    """
    filler = _Filler(iterable, depth, threads)
    filler.thread.start()
    try:
        yield from filler.items(begin)
    finally:
        filler.stop()


class _Filler(Generic[T]):
    def __init__(self, iterable: Iterable[T], depth: int, threads: int | None) -> None:
        self._iterable, self._threads = iterable, threads
        # (item,) is an item, an exception is the last word, None is the end.
        self._queue: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(max(1, depth))
        self._stopping = threading.Event()
        self.thread = threading.Thread(target=self._fill, name="phalanx-prefetch", daemon=True)

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
            torch.set_num_threads(min(self._threads, torch.get_num_threads()))  # of this thread
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


def _close(iterator: Iterator[Any]) -> None:
    """End a generator now, not when it is collected."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
