"""Work in a thread that the end of the program does not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *words: P.args, **options: P.kwargs) -> T:
    """As ``asyncio.to_thread``, whose threads would keep Ctrl-C waiting until all is read."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return  # nobody waits any more
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, trouble = None, None
        try:
            result = work(*words, **options)
        except BaseException as error:
            trouble = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, trouble)

    threading.Thread(target=run, name="phalanx-reading", daemon=True).start()
    return await answer
