"""Pieces of memory that are sent and received as they lie."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview


def as_bytes(buffer: Buffer) -> memoryview:
    """The raw bytes of ``buffer``, not copied."""
    view = memoryview(buffer)
    # An empty view of several dimensions cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def drop_first(views: list[memoryview], count: int) -> None:
    """Take the first ``count`` bytes off ``views``."""
    while count:
        if count < len(views[0]):
            views[0] = views[0][count:]
            return
        count -= len(views.pop(0))
