"""One connection to a controller: it receives frames, and a thread sends those in its outbox."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import Any

from phalanx.agent.frames import pack, unpack
from phalanx.agent.system import readable

ROOM = 2 << 20
"""Bytes that may wait in the outbox before no more chunks of files are put there."""


class Gone(Exception):  # noqa: N818  (what happened)
    """The controller has gone; ``silent``: it is still connected, but sends nothing."""

    def __init__(self, *, silent: bool = False) -> None:
        super().__init__()
        self.silent = silent


class Bell:
    """A pipe by which another thread, or a signal handler, ends a wait for the controller."""

    def __init__(self) -> None:
        self.descriptor, self._rung = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._rung, False)

    def ring(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._rung, b"!")

    def hush(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self.descriptor, 1024):
                pass


def read_exactly(source: int, count: int, patience: float, bell: Bell | None = None) -> bytes:
    """Read ``count`` bytes; ``Gone`` at their end, after long silence, or when the bell rings."""
    watched = [source] if bell is None else [source, bell.descriptor]
    parts = []
    while count:
        ready = readable(watched, patience)
        if not ready or source not in ready:
            raise Gone(silent=not ready)
        try:
            part = os.read(source, min(count, 1 << 18))
        except OSError:
            part = b""
        if not part:
            raise Gone()
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Connection:
    """A pair of descriptors: one thread reads, one writes, and any thread may call ``send``."""

    def __init__(self, source: int, sink: int, bell: Bell, patience: float) -> None:
        self.source, self.sink, self.patience = source, sink, patience
        self._bell = bell
        self._waiting: deque[bytes] = deque()
        self._urgent: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._changed = threading.Condition()
        self._sender = threading.Thread(target=self._write, name="sender", daemon=True)
        self._sender.start()

    def send(self, header: dict[str, Any], payload: bytes = b"", *, urgent: bool = False) -> None:
        """Put a frame into the outbox; one that is not urgent may have to wait for room."""
        frame = pack(header, payload)
        with self._changed:
            if not urgent:
                self._changed.wait_for(
                    lambda: self._ended or self._size < 2 * ROOM, timeout=self.patience
                )
            if self._ended:
                return
            (self._urgent if urgent else self._waiting).append(frame)
            self._size += len(frame)
            self._changed.notify_all()

    def has_room(self) -> bool:
        return self._size < ROOM and not self._ended

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Wait for the next frame; raises ``Gone`` when there will be none."""
        return unpack(lambda count: read_exactly(self.source, count, self.patience, self._bell))

    def flush(self, seconds: float) -> None:
        """Wait until everything has been written, at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._size == 0, timeout=seconds)

    def close(self) -> None:
        """Send nothing any more; threads that wait for room in the outbox go on."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def await_sender(self, seconds: float) -> None:
        """Wait until the writing thread has ended, so that the descriptor may be used again."""
        self._sender.join(seconds)

    def _write(self) -> None:
        try:
            while True:
                frame = self._next()
                if frame is None:
                    return
                write_all(self.sink, frame)
                with self._changed:
                    self._size -= len(frame)
                    self._changed.notify_all()
        except OSError:
            self.close()
            self._bell.ring()

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._urgent or self._waiting)
            return None if self._ended else (self._urgent or self._waiting).popleft()


def write_all(sink: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(sink, rest[: 1 << 16]) :]
