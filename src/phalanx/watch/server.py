"""The server of the pages, on this machine's loopback alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from phalanx.core.errors import InputError
from phalanx.core.run_folder.trust import user_secret
from phalanx.watch.access import Access, PageGate
from phalanx.watch.app import make_app
from phalanx.watch.feed.pool_view import PoolFeed
from phalanx.watch.library import Library
from phalanx.watch.streams import OpenPages, ReadingThread

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 256
LONGEST_HEAD = 16 << 10
IDLE_SECONDS = 60
"""Seconds for which a connection is kept for a page's next question."""
LAST_SECONDS = 1
"""Seconds that answers may still take when the server is to end."""
_ENDED = 5.0


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: uvicorn would send itself the signal again, and not exit with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
        self._start, self._announce = start, announce
        # Of this user alone; where no key can be kept, cookies end with this process.
        secret = user_secret("watch") or secrets.token_bytes(32)
        self._access = Access(secret, self._token_used)
        self._thread = ReadingThread()
        self._pool = pool
        self._streams = OpenPages(self._thread)
        self._library = Library(home, pool)
        app = make_app(self._library, self._thread, self._streams, complain)
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                PageGate(app, self._access),
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
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        """The address that is valid once."""
        return f"http://{LOOPBACK}:{self.port}/enter?token={self._access.token}{self._start}"

    @property
    def place(self) -> str:
        """The address without its token."""
        return f"http://{LOOPBACK}:{self.port}/"

    def take(self, machine: str, sample: object) -> None:
        """Pass on a reading of a machine of the pool; ``None`` if it does not answer."""
        if self._pool is not None:
            self._thread.give(self._pool.take, machine, sample)

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM; call this from the main thread."""
        asyncio.run(self._serve(signals=True))

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Serve from a thread of its own for as long as the ``with`` block takes."""
        thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(signals=False)),
            name="phalanx-watch-server",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            self._uvicorn.should_exit = True
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # it has ended
                    self._loop.call_soon_threadsafe(self._end)
            thread.join(_ENDED)

    async def _serve(self, *, signals: bool) -> None:
        self._loop = asyncio.get_running_loop()
        if signals:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._end)
        with self._socket:
            await self._uvicorn.serve([self._socket])
        self._thread.close(self._library.close, LAST_SECONDS / 2)

    def _end(self) -> None:
        self._streams.end()
        self._uvicorn.should_exit = True

    def _token_used(self) -> None:
        self._announce(self.address)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        busy = error.errno == errno.EADDRINUSE
        why = "is in use" if busy else f"cannot be used: {error.strerror}"
        raise InputError(
            f"port {port} of this machine {why}", "Give another --port, or none for a free one."
        ) from None
