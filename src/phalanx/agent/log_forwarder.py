"""Sends the controller what workers write: files that grow, and finished checkpoints."""

from __future__ import annotations

import os
import re
import stat
import threading
from pathlib import Path
from typing import Any

from phalanx.agent.frames import field, inside
from phalanx.agent.wire import Connection

CHECKPOINTS = "checkpoints"
CHECKPOINT_NAME = re.compile(r"[0-9]{6,15}")
CHUNK = 256 << 10
LOST = b'{"type":"lost",'
"""The start of an event's line which says that a worker of another machine was lost."""
ROUNDS = 16
"""Parts of one file at a time: a worker that floods its log must not keep the others waiting."""


class _Tail:
    """One file that grows, and how far it has been sent."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.path = name, str(inside(folder, name))
        self.offset = 0
        self._looked = 0
        self._unreadable = False

    def size(self) -> int:
        """The size of the file; 0 if it is not one that can be read."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return 0
        return 0 if self._unreadable or not stat.S_ISREG(status.st_mode) else status.st_size

    def send_some(self, connection: Connection) -> bool:
        """Send the next part of the file; return whether there may be more."""
        if not connection.has_room() or self.size() <= self.offset:
            return False
        part = _read(self.path, self.offset)
        if not part:
            self._unreadable = True
            return False
        connection.send({"tell": "chunk", "file": self.name, "offset": self.offset}, part)
        self.offset += len(part)
        return len(part) == CHUNK

    def skip(self) -> None:
        self._looked = self.size()

    def tells_of_loss(self) -> bool:
        """Whether what was written since the last look tells of a loss."""
        part = _read(self.path, self._looked) if self.size() > self._looked else b""
        part = part[: part.rfind(b"\n") + 1]
        self._looked += len(part)
        return any(line.startswith(LOST) for line in part.splitlines())


class LogForwarder:
    """Sends events and logs to the controller while they grow."""

    def __init__(self) -> None:
        self.going = True
        """Whether to send; false until a controller that reconnects says how much it has."""
        self._tails: dict[str, _Tail] = {}
        self._of_rank: dict[int, list[str]] = {}
        self._others_lost = False
        self._lock = threading.Lock()

    def follow(self, folder: Path, rank: int, log: str) -> None:
        """Begin to send the files of a rank, under their names in the run's folder."""
        names = [f"events/rank-{rank}.jsonl", log, f"logs/rank-{rank}.traceback"]
        with self._lock:
            for name in names:
                self._tails.setdefault(name, _Tail(folder, name))
        self._of_rank[rank] = names

    def resume(self, offsets: dict[str, Any]) -> None:
        with self._lock:
            for name, tail in self._tails.items():
                tail.offset = field({"ask": "resume_tails", **offsets}, name, int, 0)
            self.going = True

    def pump(self, connection: Connection) -> None:
        """Send what is new, a part of each file in turn, while there is room."""
        with self._lock:
            left = list(self._tails.values()) if self.going else []
            for _ in range(ROUNDS):
                left = [tail for tail in left if tail.send_some(connection)]

    def heard_controller(self) -> None:
        """Forget the losses that workers have reported: the controller was heard after them."""
        self._others_lost = False
        for names in list(self._of_rank.values()):
            self._tails[names[0]].skip()

    def others_lost(self) -> bool:
        """Whether workers lost another machine since the controller was heard."""
        found = [self._tails[names[0]].tells_of_loss() for names in list(self._of_rank.values())]
        self._others_lost = self._others_lost or any(found)
        return self._others_lost

    def drained(self, rank: int) -> bool:
        """Whether everything that a rank wrote has been sent."""
        with self._lock:
            tails = [self._tails[name] for name in self._of_rank.get(rank, [])]
            return self.going and all(tail.size() <= tail.offset for tail in tails)


def _read(path: str, offset: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, CHUNK, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def finished_checkpoints(run_folder: Path | None) -> list[str]:
    """The names of finished checkpoints; an unfinished one has another kind of name."""
    try:
        found = os.listdir(run_folder / CHECKPOINTS) if run_folder is not None else []  # noqa: PTH208
    except OSError:
        return []
    return [name for name in found if CHECKPOINT_NAME.fullmatch(name)]
