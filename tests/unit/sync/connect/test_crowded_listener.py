"""A crowd of strangers and a member on a long way: it gets in, however many come meanwhile.

A round trip of the member is as long as it takes so many strangers to come: 120 of them are 600 a
second at 200 ms, or 2,400 a second at 50 ms.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator

import pytest

from phalanx.core.errors import PeerLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect import connecting
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.listener import Listener

HERE, MEMBER = "127.0.0.1", "127.7.7.7"
A_ROUND_TRIP = 120
SECONDS = 60.0
HELD = 300


class Crowd:
    """Strangers from so many addresses that connect, say nothing, and stay."""

    def __init__(self, port: int, addresses: int) -> None:
        names = [f"127.20.{n // 250}.{n % 250 + 1}" for n in range(addresses)]
        self._sources, self._port = itertools.cycle(names), port
        self._held: deque[socket.socket] = deque()
        self.came = 0

    def come(self, count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(OSError):
                one = socket.create_connection((HERE, self._port), 5.0, (next(self._sources), 0))
                self._held.append(one)
                self.came += 1
                one.recv(8)  # the listener has seen it
            if len(self._held) > HELD:
                self._held.popleft().close()

    def leave(self) -> None:
        for one in self._held:
            one.close()


class LongWay:
    """Where the member's packets go: strangers overtake them."""

    def __init__(self, port: int, crowd: Crowd) -> None:
        self._port, self._crowd = port, crowd
        self._entry = socket.create_server((HERE, 0))
        self.port: int = self._entry.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                member = self._entry.accept()[0]
                try:
                    self._carry(member)
                except OSError:
                    _reset(member)
                    member.close()

    def _carry(self, member: socket.socket) -> None:
        server = socket.create_connection((HERE, self._port), 5.0, (MEMBER, 0))
        member.sendall(server.recv(4096))
        answer = member.recv(4096)
        self._crowd.come(A_ROUND_TRIP)
        server.sendall(answer)
        threading.Thread(target=_relay, args=(member, server), daemon=True).start()

    def close(self) -> None:
        self._entry.close()


def _relay(member: socket.socket, server: socket.socket) -> None:
    """Both ways, in one thread; an end is passed on as an end, a reset as a reset."""
    # Not select.select: it knows no descriptor from 1024 on, and this process may have as many.
    with member, server, selectors.DefaultSelector() as waiting:
        waiting.register(member, selectors.EVENT_READ, server)
        waiting.register(server, selectors.EVENT_READ, member)
        try:
            while True:
                for ready, _ in waiting.select():
                    if not (data := ready.fileobj.recv(1 << 16)):  # type: ignore[union-attr]
                        return
                    ready.data.sendall(data)
        except OSError:
            for one in (member, server):
                _reset(one)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def crowded(
    key: RunKey, addresses: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Listener, Crowd]]:
    listener = Listener(HERE, key)
    crowd = Crowd(listener.port, addresses)
    way, real = LongWay(listener.port, crowd), connecting.resolve
    monkeypatch.setattr(
        connecting, "resolve", lambda a, p: real(a, way.port if p == listener.port else p)
    )
    crowd.come(A_ROUND_TRIP)
    try:
        yield listener, crowd
    finally:
        way.close()
        crowd.leave()
        listener.close()


@pytest.mark.parametrize("addresses", [1, 8, 250])
def test_a_member_gets_in_through_a_crowd(addresses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    key = RunKey.new()
    with crowded(key, addresses, monkeypatch) as (listener, _):
        near = connect(HERE, listener.port, key, timeout=SECONDS)
        far = listener.accept(SECONDS)
        near.send(b"here I am")
        assert far.receive() == (b"here I am", 0)
        near.close()
        far.close()


def test_a_machine_of_the_pool_gets_in_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its places are its own, from however many addresses the others come."""
    key = RunKey.new()
    with crowded(key, 250, monkeypatch) as (listener, crowd):
        listener.expect_from([MEMBER, "a name is no address"])
        for _ in range(5):
            connect(HERE, listener.port, key, timeout=SECONDS).close()
        assert crowd.came == 6 * A_ROUND_TRIP, "no second try was needed"


def test_another_key_is_still_called_that_in_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    with crowded(RunKey.new(), 1, monkeypatch) as (listener, _):
        listener.expect_from([MEMBER])
        with pytest.raises(PeerLost, match="does not have this run's key"):
            connect(HERE, listener.port, RunKey.new(), timeout=SECONDS)


def test_who_never_gets_room_says_why() -> None:
    """Pushed out again and again: until the deadline, and not as one with another key."""
    with socket.create_server((HERE, 0)) as full:
        port = full.getsockname()[1]

        def turn_away() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one = full.accept()[0]
                    one.sendall(b"PHALANX2" + bytes(32))
                    one.recv(4096)
                    _reset(one)
                    one.close()

        threading.Thread(target=turn_away, daemon=True).start()
        with pytest.raises(PeerLost, match=r"cannot be reached .*flooded"):
            connect(HERE, port, RunKey.new(), timeout=1.0)
