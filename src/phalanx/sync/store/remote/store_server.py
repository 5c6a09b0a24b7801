"""The parameter store over TCP: a server has a shard of each store and serves all hosts.

After Li et al., "Scaling distributed machine learning with the parameter server" (2014). One
thread per connection: receiving, decoding and updating leave Python's lock alone, so clients
overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from phalanx.sync.connect.listener import Listener
from phalanx.sync.store.remote.store_messages import STORE, Open, StoreRefused
from phalanx.sync.store.remote.store_session import HostedStore, Session
from phalanx.sync.store.remote.store_shard import Shard

MAX_STORES = 64


class StoreServer:
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._stores: dict[str, HostedStore] = {}
        self._lock = threading.Lock()

    def serve(self, ended: Callable[[], bool]) -> None:
        """Accept clients until ``ended``."""
        while not ended():
            channel = self._listener.accept(timeout=0.25)
            if channel is not None and channel.introduction.purpose != STORE:
                channel.close()
            elif channel is not None:
                session = Session(self, channel)
                threading.Thread(target=session.run, daemon=True, name=channel.peer).start()

    def open(self, request: Open) -> HostedStore:
        with self._lock:
            store = self._stores.get(request.store)
            if store is None:
                if len(self._stores) >= MAX_STORES:
                    raise StoreRefused(f"this server has {MAX_STORES} stores already")
                store = self._stores[request.store] = HostedStore(Shard(request.description))
            if store.shard.description != request.description:
                raise StoreRefused(
                    "a model or optimizer is not the one that the store was opened with",
                    "Build the same model and optimizer on all machines.",
                )
            store.users += 1
            return store

    def leave(self, store: HostedStore) -> None:
        with self._lock:
            store.users -= 1

    def drop(self, name: str) -> None:
        with self._lock:
            self._stores.pop(name, None)
