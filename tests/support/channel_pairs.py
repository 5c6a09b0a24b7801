"""Two ends of a real connection over loopback, for tests of what travels on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.listener import Listener

WAIT_SECONDS = 20.0


@contextlib.contextmanager
def channel_pair(*, tls: bool = False) -> Iterator[tuple[Channel, Channel]]:
    """The connecting and the accepting side."""
    key = RunKey.new()
    listener = Listener("127.0.0.1", key, tls=tls)
    try:
        near = connect("127.0.0.1", listener.port, key, tls=tls, source="127.0.0.1")
        far = listener.accept(WAIT_SECONDS)
        assert far is not None
        try:
            yield near, far
        finally:
            near.close()
            far.close()
    finally:
        listener.close()
