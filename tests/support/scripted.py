"""Runs a function as several ranks in scripted time, for properties of what ranks do together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from phalanx.sync.arena.memory_arena import Hub, ThreadArena

LIMIT = 60.0


def scripted(workers: int, work: Callable[[int, ThreadArena], Any], seed: int = 0) -> list[Any]:
    """``work(rank, arena)`` on every rank; returns what each returned.

    The same seed gives the same order of everything, another one another.
    """
    hub = Hub(workers, seed)
    return as_threads(hub, lambda rank: work(rank, hub.arena(rank)))


def as_threads(hub: Hub, work: Callable[[int], Any]) -> list[Any]:
    """``work(rank)`` in one thread for each rank of ``hub``; the first error is raised here."""
    results: list[Any] = [None] * hub.workers
    errors: list[BaseException] = []

    def live(rank: int) -> None:
        try:
            with hub.turn(rank):
                try:
                    results[rank] = work(rank)
                except BaseException as error:
                    errors.append(error)  # before the others are told, and fail too
                    hub.abort()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=live, args=(r,), daemon=True) for r in range(hub.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    hanging = any(thread.is_alive() for thread in threads)
    hub.abort()
    if errors:
        raise errors[0]
    assert not hanging, "a rank hangs"
    return results
