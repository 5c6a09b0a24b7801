"""A thread for what may go on while its owner does something else.

Unlike those of ``concurrent.futures`` it is not waited for when the process ends: it may be sending
to a machine that does not read.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_Task = tuple[Future[None], Callable[..., Any], tuple[Any, ...]]


class BackgroundThread:
    """Calls functions one after another; it ends with its owner."""

    def __init__(self, name: str) -> None:
        self._name, self._begun = name, False
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()

    def submit(self, function: Callable[..., Any], *given: Any) -> Future[None]:
        if not self._begun:
            self._begun = True
            threading.Thread(
                target=_work, args=(self._tasks,), name=self._name, daemon=True
            ).start()
            weakref.finalize(self, self._tasks.put, None)
        future: Future[None] = Future()
        self._tasks.put((future, function, given))
        return future


def _work(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        future, function, given = task
        try:
            function(*given)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        del task, future, function, given  # they may be what keeps the owner
