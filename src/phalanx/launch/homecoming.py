"""What agents send of events, logs and samples, written where a local run would have written it.

A machine is not trusted: it writes the files of its own ranks, in order, and nothing else.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Collection
from pathlib import Path

import msgspec

from phalanx.core.run_paths import RunPaths
from phalanx.observe.events import MachineSample

_OF_RANK = re.compile(r"(?:events/rank-(\d+)\.jsonl|logs/rank-(\d+)\.(?:log|traceback))")
LARGEST = 4 << 30
"""Bytes of one file; what a machine sends beyond is not kept."""
_KEPT = 120


class Homecoming:
    """The files of one machine's ranks."""

    def __init__(self, paths: RunPaths, ranks: Collection[int]) -> None:
        self._paths, self._ranks = paths, set(ranks)
        self.offsets: dict[str, int] = {}
        """How far each file has come."""

    def take(self, file: str, offset: int, data: bytes) -> None:
        """Keep a piece; one that is not the next, or not this machine's, is passed over."""
        if not self._belongs(file) or offset > self.offsets.get(file, 0):
            return
        done = self.offsets.get(file, 0)
        fresh = data[done - offset :]
        if not fresh or done + len(fresh) > LARGEST:
            return
        _append(self._paths.folder / file, fresh)
        self.offsets[file] = done + len(fresh)

    def know(self) -> dict[str, int]:
        """What is here already, for a machine that is asked to go on."""
        for rank in self._ranks:
            for path in (
                self._paths.events_of(rank),
                self._paths.log_of(rank),
                self._paths.traceback_of(rank),
            ):
                name = path.relative_to(self._paths.folder).as_posix()
                self.offsets[name] = path.stat().st_size if path.is_file() else 0
        return self.offsets

    def _belongs(self, file: str) -> bool:
        found = _OF_RANK.fullmatch(file)
        return found is not None and int(found[1] or found[2]) in self._ranks


class MachineFile:
    """The samples of one machine: kept in its file, and for whoever watches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fresh: deque[MachineSample] = deque(maxlen=_KEPT)

    def add(self, sample: MachineSample) -> None:
        _append(self._path, msgspec.json.encode(sample) + b"\n")
        self._fresh.append(sample)

    def start(self) -> None:
        """The agent starts to read when the workers do."""

    def stop(self) -> None:
        """The agent ends with the run."""

    def take(self) -> list[MachineSample]:
        taken = []
        while self._fresh:
            taken.append(self._fresh.popleft())
        return taken


def _append(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    try:
        rest = memoryview(data)
        while rest:  # a disk that becomes full takes a part
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)
