"""Strangers at the door: no crash, no hang, no growth, and members still get in."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

import psutil
import pytest
from channel_pairs import WAIT_SECONDS
from hostile import Attacker, attack

from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect import handshake
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.listener import MAX_PENDING, Listener

BOTH = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
MEGABYTE = 1 << 20


def meet(listener: Listener, key: RunKey, *, tls: bool) -> None:
    """A member comes, is let in, and a message passes."""
    near = connect("127.0.0.1", listener.port, key, tls=tls, timeout=WAIT_SECONDS)
    far = listener.accept(WAIT_SECONDS)
    near.send(b"member")
    assert far.receive() == (b"member", 0)
    near.close()
    far.close()


def settled(reached: Callable[[], bool]) -> bool:
    """Whether it comes to that, in bounded time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not reached() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    return reached()


def survive(tries: int, attackers: int, *, tls: bool) -> Counter[str]:
    """Attack a listener while members come and go; nothing may be left behind."""
    process = psutil.Process()
    key = RunKey.new()
    listener = Listener("127.0.0.1", key, tls=tls)
    meet(listener, key, tls=tls)
    attack("127.0.0.1", listener.port, 50, seed=99)
    files, threads, memory = process.num_fds(), process.num_threads(), process.memory_info().rss
    counts: list[Counter[str]] = []

    def strike(seed: int) -> None:
        counts.append(attack("127.0.0.1", listener.port, tries // attackers, seed))

    strikers = [threading.Thread(target=strike, args=(seed,)) for seed in range(attackers)]
    for striker in strikers:
        striker.start()
    met = 0
    while met < 3 or any(striker.is_alive() for striker in strikers):
        meet(listener, key, tls=tls)
        met += 1
    assert listener.accept(0) is None
    assert settled(lambda: process.num_fds() <= files and process.num_threads() <= threads)
    assert process.memory_info().rss < memory + 24 * MEGABYTE
    listener.close()
    assert len(counts) == attackers
    return sum(counts, Counter())


def check(counts: Counter[str], tries: int) -> None:
    """All ways were tried, and none of them got an answer or left an attacker waiting."""
    ways = set(Attacker("127.0.0.1", 1, 0).ways)
    assert ways <= set(counts)
    assert sum(counts[way] for way in ways) == tries
    assert counts["welcomed"] == 0
    assert counts["no answer in time"] == 0


@BOTH
def test_a_listener_outlives_strangers(tls: bool) -> None:
    check(survive(300, 3, tls=tls), 300)


def test_a_crowd_of_silent_strangers_does_not_keep_a_member_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So long that only the limit on their number can turn anybody away.
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 10 * WAIT_SECONDS)
    key = RunKey.new()
    listener = Listener("127.0.0.1", key)
    crowd = [_visit(listener.port) for _ in range(3 * MAX_PENDING)]
    try:
        meet(listener, key, tls=False)
        assert settled(lambda: _still_open(crowd) <= MAX_PENDING)
    finally:
        for visitor in crowd:
            visitor.close()
        listener.close()


def test_slow_and_silent_ones_have_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not buy more time."""
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.5)
    listener = Listener("127.0.0.1", RunKey.new())
    slow, silent = _visit(listener.port), _visit(listener.port)

    def nudge_until_gone() -> bool:
        try:
            slow.send(b"x")
        except OSError:
            return True
        return False

    try:
        assert settled(nudge_until_gone)
        assert settled(lambda: _still_open([silent]) == 0)
    finally:
        slow.close()
        silent.close()
        listener.close()


@BOTH
def test_members_that_stop_after_their_proof_hold_nobody_up(tls: bool) -> None:
    """One that has the key but never goes on (with TLS: never says hello) blocks no other."""
    key = RunKey.new()
    listener = Listener("127.0.0.1", key, tls=tls)
    stuck = _visit(listener.port)
    greeting = handshake.TLS_GREETING if tls else handshake.PLAIN_GREETING
    name = f"127.0.0.1:{listener.port}"
    caller = handshake.Caller(key, greeting, handshake.Introduction(), name)
    caller.prove(stuck, name, WAIT_SECONDS)
    try:
        if not tls:
            assert isinstance(listener.accept(WAIT_SECONDS), Channel)
        meet(listener, key, tls=tls)
    finally:
        stuck.close()
        listener.close()


def test_closing_ends_waiting_and_leaves_nothing() -> None:
    process = psutil.Process()
    gc.collect()
    files, threads = process.num_fds(), process.num_threads()
    key = RunKey.new()
    listener = Listener("127.0.0.1", key)
    near = connect("127.0.0.1", listener.port, key)
    silent = _visit(listener.port)
    far = listener.accept(WAIT_SECONDS)
    assert far is not None
    waiting = threading.Thread(target=listener.accept)
    waiting.start()
    listener.close()
    waiting.join(WAIT_SECONDS)
    assert not waiting.is_alive()
    assert listener.accept() is None
    listener.close()
    for made in (near, far, silent):
        made.close()
    assert settled(lambda: process.num_fds() <= files and process.num_threads() <= threads)


def _visit(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)


def _still_open(visitors: list[socket.socket]) -> int:
    """How many of them the listener has not turned away."""
    return sum(map(_is_open, visitors))


def _is_open(visitor: socket.socket) -> bool:
    """Reads what there is: the greeting, then the end if it was turned away."""
    visitor.setblocking(False)
    try:
        while visitor.recv(4096):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
