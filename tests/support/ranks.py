"""Runs a function as several ranks: threads over an in-memory arena."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devices import AWAY, DEVICE, brought_home, on_host
from on_hosts import HOSTS, as_hosts, places, spread
from scripted import as_threads

from phalanx.core import settings
from phalanx.core.context import WorkerContext, enter
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.observe.events.emit import EventWriter
from phalanx.sync.arena.memory_arena import Hub
from phalanx.sync.arena.remote.remote_arena import RemoteArena
from phalanx.train.worker import build_worker as assembly


def as_ranks(
    workers: int, folder: Path, work: Callable[[int], Any], chosen: RunSettings, seed: int = 0
) -> list[Any]:
    """``work(rank)`` on every rank of a run in ``folder``; returns what each returned.

    ``seed`` decides who comes first when, so that the same one gives the same run.
    """
    RunPaths(folder).make()
    where = spread(workers, HOSTS) if HOSTS > 1 and workers > 1 else [0] * workers
    folders = [folder_on(folder, host) for host in where]

    def body(rank: int, hub: Any) -> Any:
        variables = {
            settings.RANK: str(rank),
            settings.WORKERS: str(workers),
            settings.RUN_FOLDER: str(folders[rank]),
            settings.SETTINGS: chosen.to_json(),
        }
        if AWAY:
            variables[settings.DEVICE] = str(DEVICE)
        enter(WorkerContext(variables, hub))
        return on_host(work(rank)) if AWAY else work(rank)

    with _writers_closed(), brought_home():
        if len(set(where)) > 1:
            turns = threading.Lock()
            return as_hosts(where, lambda rank, arena: _in_turn(body, rank, arena, turns), places())
        hub = Hub(workers, seed)
        return as_threads(hub, lambda rank: body(rank, hub))


def folder_on(folder: Path, host: int) -> Path:
    """Each host has a folder of its own, but for the events, which the launcher brings home."""
    if host == 0:
        return folder
    own = RunPaths(folder / f"host-{host}")
    own.folder.mkdir(exist_ok=True)
    if not own.events.is_symlink():
        own.events.symlink_to(RunPaths(folder).events.absolute())
    return own.make().folder


@dataclass
class _Seat:
    """Stands where a hub does: it knows one rank's arena.

    Until a rank asks for it, which is when it joins, its turn lasts: the ranks are threads that
    share torch's generator, and what they seed and draw before must not mix.
    """

    only: RemoteArena
    turns: threading.Lock
    mine: bool = False

    def begin(self) -> None:
        self.mine = self.turns.acquire(timeout=180)

    def end(self) -> None:
        if self.mine:
            self.turns.release()
        self.mine = False

    def arena(self, rank: int) -> RemoteArena:
        self.end()
        return self.only


def _in_turn(
    body: Callable[[int, Any], Any], rank: int, arena: RemoteArena, turns: threading.Lock
) -> Any:
    seat = _Seat(arena, turns)
    seat.begin()
    try:
        return body(rank, seat)
    finally:
        seat.end()


@contextmanager
def _writers_closed() -> Iterator[None]:
    """A worker's writer lasts as long as its process: here hundreds of workers share one."""
    made: list[EventWriter] = []
    kind = assembly.EventWriter

    def recorded(path: Path | None, rank: int) -> EventWriter:
        made.append(kind(path, rank))
        return made[-1]

    assembly.EventWriter = recorded  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        assembly.EventWriter = kind  # type: ignore[misc]
        for writer in made:
            writer.close()
