"""Read files while workers write them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.event_types import Event, decode

_CHUNK = 1 << 20
"""The most bytes that a poll reads, so that a flood of output cannot delay the controller."""


class LineTail:
    """Reads new complete lines of a growing file; keeps a partial one for the next poll."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.size = 0
        """Bytes of the file when it was last looked at."""
        self._offset = offset
        self._partial = b""

    @property
    def unread(self) -> int:
        return max(0, self.size - self._offset)

    def poll(self) -> list[bytes]:
        """Return the new lines, without their newlines."""
        try:
            # Not blocking: in the place of the file may be a pipe, which nobody writes to.
            number = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(number, "rb", buffering=0) as file:
                about = os.fstat(number)
                if not stat.S_ISREG(about.st_mode):
                    return []
                self.size = about.st_size
                if self.size < self._offset:
                    # The file was replaced by a new one: a cluster has started the job again.
                    self._offset, self._partial = 0, b""
                file.seek(self._offset)
                data = file.read(_CHUNK)
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _CHUNK:  # a very long line: passed on in parts, not split again
            lines.append(self._partial)
            self._partial = b""
        return lines

    def drain(self) -> list[bytes]:
        """Return all remaining lines, also a last one without newline: no process writes now."""
        lines: list[bytes] = []
        self._skip_a_flood()
        before = -1
        while before != self._offset:
            before = self._offset
            lines += self.poll()
        if self._partial:
            lines.append(self._partial)
            self._partial = b""
        return lines

    def _skip_a_flood(self) -> None:
        """Skip most of a very long log at the end; the file itself has all of it."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return
        if size - self._offset > 8 * _CHUNK:
            self._offset, self._partial = size - _CHUNK, b""


class EventTail:
    """Reads the events of all ranks as they are written."""

    def __init__(self, paths: RunPaths, ranks: Iterable[int]) -> None:
        self._tails = [LineTail(paths.events_of(rank)) for rank in ranks]

    def poll(self) -> list[Event]:
        return decoded(line for tail in self._tails for line in tail.poll())

    def drain(self) -> list[Event]:
        """Return the remaining events, after the last worker has ended."""
        return decoded(line for tail in self._tails for line in tail.drain())


def decoded(lines: Iterable[bytes]) -> list[Event]:
    """Return the events of ``lines``; damaged lines are left out."""
    events: list[Event] = []
    for line in lines:
        try:
            events.append(decode(line))
        except (msgspec.MsgspecError, RecursionError):
            continue  # cut short by a crash, or written by another version
    return events
