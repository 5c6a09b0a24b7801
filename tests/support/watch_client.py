"""A server of the pages on loopback, in a thread, and a client that sends exactly what it must."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from phalanx.watch.feed.pool_view import PoolFeed
from phalanx.watch.server import WatchServer

SECONDS = 20.0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """Requests with ``headers``, which have the cookie once the client has entered."""

    port: int
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        given = self.headers | {name.replace("_", "-"): text for name, text in headers.items()}
        try:
            connection.putrequest(method, path, skip_host="Host" in given)
            for name, text in given.items():
                connection.putheader(name, text)
            connection.endheaders()
            return read_answer(connection.getresponse())
        finally:
            connection.close()

    def enter(self, address: str) -> Answer:
        """Open the address that was printed, and keep the cookie."""
        parts = urlsplit(address)
        answer = self(f"{parts.path}?{parts.query}")
        self.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]
        return answer

    def raw(self, data: bytes) -> bytes:
        """Send bytes as they are, and return all that comes back until the connection ends."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as connection:
            parts = []
            with suppress(OSError):  # ended before all was sent or read
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(1 << 16):
                    parts.append(part)
            return b"".join(parts)


class Events:
    """An open stream of events."""

    def __init__(self, client: Client, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=SECONDS)
        self._connection.request("GET", path, headers=client.headers)
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()

    def next(self, wanted: str) -> Any:
        """The data of the next event of this name; ``None`` at the end of the stream."""
        name = ""
        while line := self.response.readline().decode():
            if line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: ") and name == wanted:
                return json.loads(line.removeprefix("data: "))
        return None

    def close(self) -> None:
        self.response.close()
        self._connection.close()


def read_answer(response: http.client.HTTPResponse) -> Answer:
    stream = response.headers.get_content_type() == "text/event-stream"
    headers = {name.lower(): text for name, text in response.getheaders()}
    return Answer(response.status, headers, b"" if stream else response.read())


@dataclass
class Served:
    server: WatchServer
    client: Client
    addresses: list[str]
    complaints: list[str]


@contextmanager
def served(home: Path, pool: PoolFeed | None = None, *, enter: bool = True) -> Iterator[Served]:
    """A server of ``home``, and a client that has entered unless it must not."""
    addresses: list[str] = []
    complaints: list[str] = []
    server = WatchServer(home, addresses.append, complaints.append, pool=pool)
    addresses.append(server.address)
    client = Client(server.port)
    with server.serving():
        if enter:
            client.enter(addresses[0])
        yield Served(server, client, addresses, complaints)
