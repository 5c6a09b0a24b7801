"""The roll-ups of all workers of a run, kept in ``runs/ID/rollups/``.

The folder can be deleted at any time. Where it cannot be written, or another process keeps it, the
roll-ups are made in a folder of their own, which goes away with them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from pathlib import Path

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.rollups.rank_rollup import RankRollup

SAVED_EVERY = 10.0
"""Seconds after which new rows of a run in progress are saved."""
LOOKED_EVERY = 1.0
"""Seconds after which new workers are looked for."""


class RunRollups:
    """The roll-ups of a run, by rank."""

    def __init__(self, paths: RunPaths) -> None:
        self.ranks: dict[int, RankRollup] = {}
        self._paths = paths
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._lock: int | None = None
        self._folder: Path | None = None
        self._looked = self._saved = 0.0
        self._behind = True

    def read(self, seconds: float) -> bool:
        """Read what is new for at most about ``seconds``; return whether there was anything."""
        end = time.monotonic() + seconds
        self._find_ranks()
        added = False
        left = list(self.ranks.values())
        while left:
            rank = min(left, key=lambda one: one.offset)
            added = rank.read() or added
            if not rank.pending:
                left.remove(rank)
            if time.monotonic() > end:
                break
        caught_up = not left
        if (caught_up and self._behind) or time.monotonic() - self._saved > SAVED_EVERY:
            self.save()
        self._behind = not caught_up
        return added

    @property
    def share_read(self) -> float | None:
        """The share of the events that was read; ``None`` if all were."""
        if not self._behind:
            return None
        size = sum(rank.size for rank in self.ranks.values())
        return min(1.0, sum(rank.offset for rank in self.ranks.values()) / size) if size else 0.0

    def save(self) -> None:
        self._saved = time.monotonic()
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.mkdir(exist_ok=True)
        for rank in self.ranks.values():
            rank.save()

    def close(self) -> None:
        """Save, and let another process have the folder."""
        self.save()
        self.ranks.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._own is not None:
            self._own.cleanup()
            self._own = None
        self._folder = None

    def _find_ranks(self) -> None:
        if self._looked and time.monotonic() - self._looked < LOOKED_EVERY:
            return
        self._looked = time.monotonic()
        try:
            names = [entry.name for entry in os.scandir(self._paths.events)]
        except OSError:
            return
        found = (re.fullmatch(r"rank-(\d{1,9})\.jsonl", name) for name in names)
        for rank in sorted(int(name[1]) for name in found if name):
            if rank not in self.ranks:
                self._folder = self._folder or self._make_folder()
                self.ranks[rank] = RankRollup(rank, self._paths.events_of(rank), self._folder)

    def _make_folder(self) -> Path:
        folder = self._paths.rollups
        try:
            folder.mkdir(exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            if not folder.is_symlink():
                self._lock = os.open(folder / "lock", flags, 0o644)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return folder
        except OSError:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
        self._own = tempfile.TemporaryDirectory(prefix="phalanx-rollups-")
        return Path(self._own.name)
