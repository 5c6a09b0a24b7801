"""The parameter store over TCP: a server has a shard of each store and serves all hosts.

After Li et al., "Scaling distributed machine learning with the parameter server" (2014). One
thread per connection: receiving, decoding and updating leave Python's lock alone, so clients
overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from phalanx.sync.connect.listener import Listener
from phalanx.sync.store.remote.store_messages import STORE
from phalanx.sync.store.remote.store_session import HostedStores, Session


class StoreServer:
    def __init__(self, listener: Listener) -> None:
        self._listener, self._stores = listener, HostedStores()

    def serve(self, ended: Callable[[], bool]) -> None:
        """Accept clients until ``ended``."""
        while not ended():
            channel = self._listener.accept(timeout=0.25)
            if channel is not None and channel.introduction.purpose != STORE:
                channel.close()
            elif channel is not None:
                session = Session(self._stores, channel)
                threading.Thread(target=session.run, daemon=True, name=channel.peer).start()
