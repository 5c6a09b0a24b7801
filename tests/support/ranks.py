"""Runs a function as several ranks: threads over an in-memory arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripted import as_threads

from phalanx.core import settings
from phalanx.core.context import WorkerContext, enter
from phalanx.core.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.observe.emit import EventWriter
from phalanx.sync.transport.memory import Hub
from phalanx.train import join


def as_ranks(
    workers: int, folder: Path, work: Callable[[int], Any], chosen: RunSettings, seed: int = 0
) -> list[Any]:
    """``work(rank)`` on every rank of a run in ``folder``; returns what each returned.

    ``seed`` decides who comes first when, so that the same one gives the same run.
    """
    RunPaths(folder).make()
    hub = Hub(workers, seed)

    def body(rank: int) -> Any:
        variables = {
            settings.RANK: str(rank),
            settings.WORKERS: str(workers),
            settings.RUN_FOLDER: str(folder),
            settings.SETTINGS: chosen.to_json(),
        }
        enter(WorkerContext(variables, hub))
        return work(rank)

    with _writers_closed():
        return as_threads(hub, body)


@contextmanager
def _writers_closed() -> Iterator[None]:
    """A worker's writer lasts as long as its process: here hundreds of workers share one."""
    made: list[EventWriter] = []
    kind = join.EventWriter

    def recorded(path: Path | None, rank: int) -> EventWriter:
        made.append(kind(path, rank))
        return made[-1]

    join.EventWriter = recorded  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        join.EventWriter = kind  # type: ignore[misc]
        for writer in made:
            writer.close()
