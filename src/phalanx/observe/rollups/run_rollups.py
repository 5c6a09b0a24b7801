"""The roll-ups of all workers of a run, kept in ``runs/ID/rollups/``.

The folder can be deleted at any time. Where it cannot be written, or another process keeps it, new
rows stay in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.rollups.level import plain_file
from phalanx.observe.rollups.rank_rollup import RankRollup

SAVED_EVERY = 10.0
"""Seconds after which new rows are saved."""


class RunRollups:
    """The roll-ups of a run, by rank."""

    def __init__(self, paths: RunPaths) -> None:
        self.ranks: dict[int, RankRollup] = {}
        self._paths = paths
        self._lock = contextlib.ExitStack()
        self._locked = False
        self._saved = -SAVED_EVERY
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
            now = time.monotonic()
            if (self._behind and not left) or now - self._saved > SAVED_EVERY:
                self.save()
            if now > end:
                break
        self._behind = bool(left)
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
        if not (self._locked and self._paths.rollups.is_dir()):
            self._lock.close()
            self._locked = self._take_lock()
        for rank in self.ranks.values() if self._locked else ():
            rank.save()

    def close(self) -> None:
        """Save, and let another process have the folder."""
        self.save()
        self.ranks.clear()
        self._lock.close()
        self._locked = False

    def _find_ranks(self) -> None:
        try:
            names = [entry.name for entry in os.scandir(self._paths.events)]
        except OSError:
            return
        found = (re.fullmatch(r"rank-(\d{1,9})\.jsonl", name) for name in names)
        for rank in sorted(int(name[1]) for name in found if name):
            if rank not in self.ranks:
                events = self._paths.events_of(rank)
                self.ranks[rank] = RankRollup(rank, events, self._paths.rollups)

    def _take_lock(self) -> bool:
        folder = self._paths.rollups
        with contextlib.suppress(OSError), contextlib.ExitStack() as lock:
            folder.mkdir(exist_ok=True)
            if not folder.is_symlink():
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                file = lock.enter_context(plain_file(folder / "lock", flags))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = lock.pop_all()
                return True
        return False
