from __future__ import annotations

import os
import socket

from phalanx.train.proof.child import answer_of, connections, fork


def test_what_the_script_is_connected_to() -> None:
    before = connections()
    here, there = socket.socketpair()
    assert len(connections() - before) == 2
    here.close()
    there.close()
    assert connections() <= before


def test_a_child_that_somebody_else_has_reaped() -> None:
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        os.write(writing, b"answer")
        os._exit(0)
    os.close(writing)
    assert child is not None
    os.waitpid(child, 0)
    assert answer_of(child, reading, 5.0) == b"answer"
