"""Reading what a controller sends, also in a process with many open files."""

from __future__ import annotations

import os
import socket

import pytest
from descriptors import many_open

from phalanx.agent.wire import Bell, Gone, read_exactly


def test_reading_with_more_than_1023_descriptors() -> None:
    with many_open():
        near, far = socket.socketpair()
        bell = Bell()
        with near, far:
            assert near.fileno() > 1023
            far.sendall(b"whole")
            assert read_exactly(near.fileno(), 5, 20.0, bell) == b"whole"
            with pytest.raises(Gone) as silent:
                read_exactly(near.fileno(), 1, 0.01, bell)
            bell.ring()
            with pytest.raises(Gone) as rung:
                read_exactly(near.fileno(), 1, 20.0, bell)
            bell.hush()
            far.close()
            with pytest.raises(Gone) as ended:
                read_exactly(near.fileno(), 1, 20.0, bell)
        assert [found.value.silent for found in (silent, rung, ended)] == [True, False, False]
        os.close(bell.descriptor)
        os.close(bell._rung)
