"""Runs coroutines for synchronous threads, and blocking functions for coroutines."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from phalanx.core.background import BackgroundThread
from phalanx.core.errors import RunStopped

P = ParamSpec("P")
T = TypeVar("T")
_TICK = 0.05
_LAST = 5.0


class EventLoop:
    """Runs coroutines for threads that are not asynchronous themselves."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="phalanx-machines", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(
        self, work: Coroutine[Any, Any, T], asked: Callable[[], bool], limit: float | None = None
    ) -> T:
        """Return ``work``'s result; raise ``RunStopped`` once ``asked()``, or ``TimeoutError``."""
        future = self.submit(work)
        left = float("inf") if limit is None else limit
        while True:
            try:
                return future.result(_TICK)
            except concurrent.futures.TimeoutError:
                if future.done():  # the work has just ended, or raised this error itself
                    return future.result()
            left -= _TICK
            if asked() or left <= 0:
                cancel(future)
                if asked():
                    raise RunStopped
                raise TimeoutError

    def close(self) -> None:
        """Cancel the remaining tasks, and end the thread; a second call does nothing."""
        if self._loop.is_closed() or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LAST)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                waiting = asyncio.wait(left, timeout=_LAST / 2)
                self._loop.run_until_complete(waiting)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


def cancel(future: concurrent.futures.Future[Any]) -> None:
    """Cancel ``future``, and wait a few seconds for its end."""
    future.cancel()
    concurrent.futures.wait([future], timeout=_LAST)


async def in_thread(work: Callable[P, T], *words: P.args, **options: P.kwargs) -> T:
    """Do the same as ``asyncio.to_thread``, in a daemon thread, which does not delay Ctrl-C."""
    done = BackgroundThread("phalanx-reading").submit(partial(work, *words, **options))
    return cast(T, await asyncio.wrap_future(done))
