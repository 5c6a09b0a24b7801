"""The server of the pages, on this machine's loopback alone."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from phalanx.core.errors import InputError
from phalanx.core.run_folder.trust import user_secret
from phalanx.watch.access import PageGate
from phalanx.watch.app import make_app
from phalanx.watch.feed.pool_view import PoolFeed
from phalanx.watch.library import Library

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 128
LONGEST_HEAD = 16 << 10
IDLE_SECONDS = 60
"""Seconds for which a connection is kept for a page's next question."""
LAST_SECONDS = 1
"""Seconds that answers may still take when the server is to end."""
_ENDED = 5.0


class _Uvicorn(uvicorn.Server):
    """Lets open pages go first when it ends."""

    def __init__(self, config: uvicorn.Config, library: Library) -> None:
        super().__init__(config)
        self._library = library

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._library.ended.set()
        await super().shutdown(sockets)


class WatchServer:
    """Serves the pages of the runs in ``home``; has its port from the beginning."""

    def __init__(
        self,
        home: Path,
        announce: Callable[[str], None],
        complain: Callable[[str], None],
        *,
        port: int = 0,
        start: str = "",
        pool: PoolFeed | None = None,
    ) -> None:
        """``announce`` is given each address that has become valid, ``complain`` lines about
        errors, both in the server's thread. ``start``: the part of the pages to open first."""
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self._start = start
        self.library = Library(home, pool)
        # Of this user alone; where no key can be kept, cookies end with this process.
        secret = user_secret("watch") or secrets.token_bytes(32)
        app = make_app(self.library, complain)
        self._gate = PageGate(app, secret, lambda: announce(self.address))
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                self._gate,
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MOST_CONNECTIONS,
                h11_max_incomplete_event_size=LONGEST_HEAD,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=LAST_SECONDS,
            ),
            self.library,
        )

    @property
    def address(self) -> str:
        """The address that is valid once."""
        return f"http://{LOOPBACK}:{self.port}/enter?token={self._gate.token}{self._start}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve from a thread of its own for as long as the ``with`` block takes."""
        thread = threading.Thread(
            target=self._uvicorn.run,
            args=([self._socket],),
            name="phalanx-watch-server",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            self._uvicorn.should_exit = True
            thread.join(_ENDED)
            self.library.close(LAST_SECONDS / 2)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        busy = error.errno == errno.EADDRINUSE
        why = "is in use" if busy else f"cannot be used: {error.strerror}"
        raise InputError(
            f"port {port} of this machine {why}", "Give another --port, or none for a free one."
        ) from None
