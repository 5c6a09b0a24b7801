"""Links between threads of one process: the same protocol over queues, for tests and scripts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from phalanx.core.errors import PeerLost
from phalanx.sync.collective.links import Links, Parcel


class _Mesh:
    """What all participants share: a stream of bytes for each ordered pair."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.streams = {(a, b): bytearray() for a in range(size) for b in range(size) if a != b}
        self.gone: set[int] = set()


class MemoryLinks(Links):
    """Made by :func:`memory_links`."""

    def __init__(self, rank: int, mesh: _Mesh, names: Sequence[str], timeout: float) -> None:
        super().__init__(rank, {}, names, timeout=timeout)
        self.goes_ahead, self._mesh, self._seconds = False, mesh, timeout

    def swap(self, outgoing: Sequence[Parcel], incoming: Sequence[Parcel]) -> None:
        for to, buffers in outgoing:
            for buffer in buffers:
                self._write(to, buffer)
        deadline = time.monotonic() + self._seconds
        for frm, buffers in incoming:
            for buffer in buffers:
                self._read(frm, buffer, deadline)

    def close(self) -> None:
        with self._mesh.changed:
            self._mesh.gone.add(self.rank)
            self._mesh.changed.notify_all()

    def _write(self, to: int, buffer: memoryview) -> None:
        with self._mesh.changed:
            self._check({self.rank, to})
            self._mesh.streams[self.rank, to] += buffer
            self._mesh.changed.notify_all()
        self.sent += len(buffer)

    def _read(self, frm: int, buffer: memoryview, deadline: float) -> None:
        stream, count = self._mesh.streams[frm, self.rank], len(buffer)
        with self._mesh.changed:
            while len(stream) < count:
                self._check({self.rank, frm})
                if not self._mesh.changed.wait(deadline - time.monotonic()):
                    raise PeerLost(f"{self.names[frm]} is gone (no answer)")
            buffer[:] = stream[:count]
            del stream[:count]

    def _check(self, needed: set[int]) -> None:
        for rank in sorted(needed & self._mesh.gone):
            raise PeerLost(f"{self.names[rank]} is gone (its links are closed)")


def memory_links(
    size: int, names: Sequence[str] | None = None, timeout: float = 30.0
) -> list[MemoryLinks]:
    """One for each participant, by rank."""
    names = names or [f"participant {rank}" for rank in range(size)]
    mesh = _Mesh(size)
    return [MemoryLinks(rank, mesh, names, timeout) for rank in range(size)]
