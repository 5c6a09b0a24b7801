"""A cable that is pulled: whoever waits on that link hears of it in seconds (needs root)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from channel_pairs import WAIT_SECONDS

from phalanx.core.errors import PeerLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.duplex import exchange
from phalanx.sync.connect.listener import Listener

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes a network of its own: needs root"),
]
NOTICED_SECONDS = 9.0
HERE, THERE = "10.213.7.1", "10.213.7.2"
ECHO = """
import sys, time
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect.connecting import connect
address, port, key, tls = sys.argv[1:]
channel = connect(address, int(port), RunKey.from_text(key), tls=tls == "1")
time.sleep(60)
"""


@pytest.fixture
def link() -> Iterator[str]:
    """A pair of interfaces, one of them in a network of its own; the name of ours."""
    own = f"ph{os.getpid() % 100000}"
    space = f"phalanx-{own}"
    _ip("netns", "add", space)
    try:
        _ip("link", "add", f"{own}a", "type", "veth", "peer", "name", f"{own}b", "netns", space)
        _ip("addr", "add", f"{HERE}/24", "dev", f"{own}a")
        _ip("link", "set", f"{own}a", "up")
        _ip("-n", space, "addr", "add", f"{THERE}/24", "dev", f"{own}b")
        _ip("-n", space, "link", "set", f"{own}b", "up")
        yield own
    finally:
        # A deleted network gives its interfaces back some time later: the next test is faster.
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"{own}a")
        _ip("netns", "del", space)


@contextlib.contextmanager
def _far_member(own: str, *, tls: bool) -> Iterator[Channel]:
    """A channel to a process on the other side of the link that lives and reads nothing."""
    key = RunKey.new()
    listener = Listener(HERE, key, tls=tls)
    command = ["ip", "netns", "exec", f"phalanx-{own}", sys.executable, "-c", ECHO]
    other = subprocess.Popen([*command, HERE, str(listener.port), key.text(), str(int(tls))])
    try:
        channel = listener.accept(WAIT_SECONDS)
        assert channel is not None
        yield channel
        channel.close()
    finally:
        other.kill()
        other.wait()
        listener.close()


def _wait_idle(channel: Channel) -> None:
    channel.receive()


def _wait_for_answer(channel: Channel) -> None:
    channel.send(b"question")
    channel.receive()


def _send_much(channel: Channel) -> None:
    channel.send(b"much", bytes(64 << 20))


def _exchange_much(channel: Channel) -> None:
    exchange([(channel, [bytes(64 << 20)])], [(channel, [memoryview(bytearray(1))])])


def _poll_long(channel: Channel) -> None:
    channel.send(b"question")
    while not channel.poll(WAIT_SECONDS):
        pass
    channel.receive()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "act", [_wait_idle, _wait_for_answer, _send_much, _exchange_much, _poll_long]
)
def test_a_cut_link_is_noticed(link: str, act: Callable[[Channel], None], tls: bool) -> None:
    with _far_member(link, tls=tls) as channel:
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                act(channel)
            except PeerLost as error:
                caught.append(error)

        if act in (_wait_for_answer, _poll_long):
            _cut(link)
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        # Long enough for the buffers to fill, so that the kernel probes a closed window.
        waiting.join(2.0)
        assert waiting.is_alive()
        _cut(link)
        waiting.join(NOTICED_SECONDS)
        assert not waiting.is_alive()
        assert "is gone" in str(caught[0])


def test_connecting_to_a_cut_machine_ends_in_time(link: str) -> None:
    _cut(link)
    with pytest.raises(PeerLost, match="cannot be reached"):
        connect(THERE, 4000, RunKey.new(), timeout=1.0)


def _cut(own: str) -> None:
    """On the far side, so that only silence tells of it here."""
    _ip("-n", f"phalanx-{own}", "link", "set", f"{own}b", "down")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
