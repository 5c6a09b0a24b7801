"""Runs a function as several ranks: threads over an in-memory arena."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.core import settings
from phalanx.core.context import WorkerContext, enter
from phalanx.core.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.sync.transport.memory import Hub

LIMIT = 60.0


def as_ranks(
    workers: int, folder: Path, work: Callable[[int], Any], chosen: RunSettings
) -> list[Any]:
    """``work(rank)`` on every rank of a run in ``folder``; returns what each returned."""
    RunPaths(folder).make()
    hub, results, errors = Hub(workers), [None] * workers, []

    def body(rank: int) -> None:
        variables = {
            settings.RANK: str(rank),
            settings.WORKERS: str(workers),
            settings.RUN_FOLDER: str(folder),
            settings.SETTINGS: chosen.to_json(),
        }
        enter(WorkerContext(variables, hub))
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)
            hub.abort()

    threads = [threading.Thread(target=body, args=(r,), daemon=True) for r in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results
