"""One authenticated connection between two members of a run: frames, and raw bytes.

A frame is a fixed prefix (length of the header, length of the payload), the header, the payload.
Both lengths are checked before anything is allocated. Payloads go from and into the caller's own
memory.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import ClassVar

from phalanx.core.errors import MachineLost
from phalanx.sync.connect import liveness
from phalanx.sync.connect.handshake import Introduction

MAX_HEADER = 1 << 20
MAX_PAYLOAD = 1 << 36
BULK_BYTES = 1 << 16
# The kernel takes at most 1024 pieces at once.
MAX_PIECES = 1000
_PREFIX = struct.Struct("<IQ")
CLOSED_HERE = "this side closed the connection"
_REMEDY = "See its log, and whether its machine and link are up."

Buffer = bytes | bytearray | memoryview


class ConnectionEnded(MachineLost):
    """The other side closed the connection in good order."""


class Channel:
    """A connection whose other side has proved the run's key.

    One thread may send while another receives; two senders or two receivers need a lock of their
    own.
    """

    sends_ahead: ClassVar[bool] = True
    """Whether part of a message may be sent early."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.peer = peer
        self.introduction = Introduction()
        """What the caller said of itself, on the side that was called."""
        self.max_payload = MAX_PAYLOAD
        self._connection = connection
        self._watch = liveness.LinkWatch(connection)
        self._prefix = memoryview(bytearray(_PREFIX.size))
        self._unread = 0
        self._bulk = False
        liveness.prepare(connection)
        connection.setblocking(True)

    def send(self, header: bytes, *buffers: Buffer) -> None:
        """Send one frame: the header, then the raw bytes of the buffers."""
        views = [as_bytes(buffer) for buffer in buffers]
        size = sum(map(len, views))
        if len(header) > MAX_HEADER or size > MAX_PAYLOAD:
            raise ValueError(f"a frame of {len(header)} + {size} bytes is beyond the limits")
        prefix = _PREFIX.pack(len(header), size) + header
        self.send_raw([memoryview(prefix), *views])

    def receive(self) -> tuple[bytes, int]:
        """Return the header of the next frame, and how many bytes of payload follow it."""
        if self._unread:
            raise self.lost(f"{self._unread} bytes of its last message were not expected")
        self.receive_raw(self._prefix)
        length, payload = _PREFIX.unpack(self._prefix)
        if length > MAX_HEADER or payload > self.max_payload:
            self.close()
            raise self.lost("it announced a message that is larger than the limit")
        header = bytearray(length)
        self.receive_raw(memoryview(header))
        self._unread = payload
        return bytes(header), payload

    def receive_into(self, *buffers: memoryview) -> None:
        """Receive the payload of the frame just received, straight into ``buffers``."""
        views = [as_bytes(buffer) for buffer in buffers]
        self._take(sum(map(len, views)))
        for view in views:
            self.receive_raw(view)

    def skip(self, count: int) -> None:
        """Throw away ``count`` bytes of the payload."""
        self._take(count)
        scratch = memoryview(bytearray(min(count, 1 << 16)))
        while count:
            part = scratch[: min(count, len(scratch))]
            self.receive_raw(part)
            count -= len(part)

    def poll(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for something to read, or the end of the connection."""
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if self.ready(select.POLLIN, max(0.0, min(left, liveness.LOOK_SECONDS))):
                return True
            if left <= 0:
                return False
            self.look()

    def fileno(self) -> int:
        """The descriptor, for selectors; -1 once closed."""
        return self._connection.fileno()

    def use(self) -> tuple[int, float]:
        """Return the bytes that have reached the peer, and the seconds that they took."""
        try:
            return liveness.use_of(self._connection)
        except OSError:
            return 0, 0.0  # it is closed

    def close(self) -> None:
        """End the connection; the other side reads the end of it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def send_raw(self, views: Sequence[memoryview]) -> None:
        """Send all bytes of ``views`` without a frame."""
        left = [view for view in views if len(view)]
        size = sum(map(len, left))
        self.expect_bulk(size)
        while size:
            sent = self.send_some(left, wait=True)
            size -= sent
            if size:
                drop_first(left, sent)

    def receive_raw(self, view: memoryview) -> None:
        """Fill ``view`` with the next bytes of the connection."""
        missing = len(view)
        while missing:
            count = self.receive_some(view, wait=True)
            missing -= count
            if missing:
                view = view[count:]

    def send_some(self, views: Sequence[memoryview], *, wait: bool) -> int:
        """Send what can be sent now (``wait``: at least a byte); return how many bytes went."""
        while True:
            try:
                flags = 0 if wait else socket.MSG_DONTWAIT
                return self._connection.sendmsg(views[:MAX_PIECES], (), flags)
            except BlockingIOError:
                if not wait:
                    return 0
                self.look()
            except OSError as error:
                raise self.lost(reason(error)) from None

    def receive_some(self, view: memoryview, *, wait: bool) -> int:
        """Receive what is there (``wait``: at least one byte); return how many bytes that was."""
        while True:
            try:
                flags = socket.MSG_WAITALL if wait else socket.MSG_DONTWAIT
                count = self._connection.recv_into(view, 0, flags)
            except BlockingIOError:
                if not wait:
                    return 0
                self.look()
                continue
            except OSError as error:
                raise self.lost(reason(error)) from None
            if not count:
                raise self.closed()
            return count

    def poll_events(self, sending: bool, receiving: bool) -> int:
        """Return the events to wait for before the next try in these directions."""
        return (select.POLLOUT if sending else 0) | (select.POLLIN if receiving else 0)

    def expect_bulk(self, size: int) -> None:
        """Prepare for a message so large that the peer's kernel may not hold it."""
        if size > BULK_BYTES and not self._bulk:
            self._bulk = True
            liveness.allow_slow_reader(self._connection)

    def ready(self, events: int, seconds: float) -> bool:
        """Wait up to ``seconds`` for one of the poll ``events``."""
        number = self.fileno()
        if number < 0:
            raise self.lost(CLOSED_HERE)
        poller = select.poll()
        poller.register(number, events)
        return bool(poller.poll(seconds * 1000))

    def look(self) -> None:
        """Raise if the link is cut. For owners that wait with selectors: call it every second.

        (``receive``, ``send``, ``poll`` and ``exchange`` do so themselves while they wait.)
        """
        try:
            cut = self._watch.is_cut()
        except OSError as error:
            raise self.lost(reason(error)) from None
        if cut:
            raise self.lost("its machine does not answer any more")

    def lost(self, why: str) -> MachineLost:
        """Return the error which says that this peer is gone."""
        return MachineLost(f"{self.peer} is gone ({why})", _REMEDY)

    def closed(self) -> ConnectionEnded:
        """Return the error which says that this peer has closed the connection."""
        return ConnectionEnded(f"{self.peer} is gone (it closed the connection)", _REMEDY)

    def _take(self, count: int) -> None:
        if count > self._unread:
            raise self.lost(f"{count} bytes were expected, it sent {self._unread}")
        self._unread -= count


def reason(error: OSError) -> str:
    """Say in words why the connection ended."""
    if isinstance(error, TimeoutError):
        return "its machine does not answer any more"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "it ended the connection"
    if error.errno == errno.EBADF:
        return CLOSED_HERE
    return (error.strerror or str(error)).lower()


def as_bytes(buffer: Buffer) -> memoryview:
    """Return the bytes of ``buffer`` without copying them."""
    view = memoryview(buffer)
    # An empty view of several dimensions cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def drop_first(views: list[memoryview], count: int) -> None:
    """Remove the first ``count`` bytes from ``views``."""
    while count:
        if count < len(views[0]):
            views[0] = views[0][count:]
            return
        count -= len(views.pop(0))
