"""Several actions at the same time, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(actions: Sequence[Callable[[], T]], seconds: float = 60.0) -> list[T]:
    """What they return, in their order; an error in one of them is an error of the test."""
    pool = ThreadPoolExecutor(len(actions))
    try:
        futures = [pool.submit(action) for action in actions]
        return [future.result(seconds) for future in futures]
    finally:
        pool.shutdown(wait=False)
