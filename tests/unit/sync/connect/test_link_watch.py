"""When a link counts as cut: not at one look, and not at two threads' looks at the same moment."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from phalanx.sync.connect import liveness
from phalanx.sync.connect.liveness import LinkWatch


class Kernel:
    """Stands for a socket, whose peer has been silent for so many milliseconds."""

    silent = 0

    def getsockopt(self, *_: int) -> bytes:
        return struct.pack("=2xBB52xI", 1, 0, self.silent)


def test_a_silence_has_to_last_from_one_look_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now, kernel = [100.0], Kernel()
    monkeypatch.setattr(liveness.time, "monotonic", lambda: now[0])
    connection: Any = kernel
    watch = LinkWatch(connection)
    kernel.silent = 2 * liveness.SILENT_MILLISECONDS
    assert not watch.is_cut()
    assert not watch.is_cut(), "another thread looks at the same moment"
    now[0] += 1.0
    kernel.silent = 0
    assert not watch.is_cut(), "an answer was under way"
    kernel.silent = 2 * liveness.SILENT_MILLISECONDS
    assert not watch.is_cut()
    now[0] += 1.0
    assert watch.is_cut()
