"""A thread for calls that need not block their owner.

Unlike with ``concurrent.futures``, the process does not wait for this thread at its end: the thread
may be sending to a machine that does not read.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class BackgroundThread:
    """Calls functions one after another; it ends on ``close``, or when this object is deleted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()

    def submit(self, function: Callable[..., Any], *given: Any) -> Future[Any]:
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._tasks,), name=self._name, daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._tasks.put, None)
        future: Future[Any] = Future()
        self._tasks.put((future, function, given))
        return future

    def close(self, seconds: float) -> None:
        """End the thread after all submitted calls; wait for this at most ``seconds``."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(seconds)


def _work(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        (future, function, given), error, found = task, None, None
        if not future.set_running_or_notify_cancel():
            continue
        try:
            found = function(*given)
        except BaseException as raised:
            error = raised
        # Deleted before the future is set: they may hold tensors, and the thread that waits for
        # the future may end the process, at whose end no thread may free tensors.
        del task, function, given
        if error is None:
            future.set_result(found)
        else:
            future.set_exception(error)
        del future, error, found
