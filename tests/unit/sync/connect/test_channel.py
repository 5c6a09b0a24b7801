"""Frames and raw bytes between two members: whole, in order, into the memory that was given."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from channel_pairs import WAIT_SECONDS, channel_pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threads_at_once import at_once

from phalanx.core.errors import PeerLost
from phalanx.sync.connect.channel import MAX_HEADER, Channel
from phalanx.sync.connect.duplex import exchange

MEGABYTE = 1 << 20
Pair = tuple[Channel, Channel]


@pytest.fixture(params=[False, True], ids=["plain", "tls"], scope="module")
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with channel_pair(tls=request.param) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def own_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with channel_pair(tls=request.param) as made:
        yield made


def together(*actions: Callable[[], object]) -> None:
    at_once(actions, WAIT_SECONDS)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    frames=st.lists(
        st.tuples(st.binary(max_size=300), st.lists(st.binary(max_size=40_000), max_size=5)),
        min_size=1,
        max_size=4,
    )
)
def test_frames_arrive_whole_and_in_order(
    pair: Pair, frames: list[tuple[bytes, list[bytes]]]
) -> None:
    near, far = pair

    def send() -> None:
        for header, buffers in frames:
            near.send(header, *buffers)

    def receive() -> None:
        for header, buffers in frames:
            assert far.receive() == (header, sum(map(len, buffers)))
            got = [bytearray(len(buffer)) for buffer in buffers]
            far.receive_into(*map(memoryview, got))
            assert [bytes(part) for part in got] == buffers

    together(send, receive)


def test_many_small_buffers_and_a_big_one(pair: Pair) -> None:
    """More pieces than the kernel takes at once, and more bytes than it holds."""
    near, far = pair
    pieces = [os.urandom(3) for _ in range(2500)] + [os.urandom(6 * MEGABYTE)]
    got = bytearray(sum(map(len, pieces)))

    def receive() -> None:
        assert far.receive() == (b"many", len(got))
        far.receive_into(memoryview(got))

    together(lambda: near.send(b"many", *pieces), receive)
    assert bytes(got) == b"".join(pieces)


def test_a_payload_may_be_skipped_or_taken_in_parts(pair: Pair) -> None:
    near, far = pair
    payload = os.urandom(200_000)
    together(lambda: near.send(b"a", payload), lambda: far.receive() and far.skip(100_000))
    rest = bytearray(100_000)
    together(lambda: far.receive_into(memoryview(rest)))
    assert bytes(rest) == payload[100_000:]
    near.send(b"next")
    assert far.receive() == (b"next", 0)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sizes=st.tuples(*[st.lists(st.integers(0, 300_000), max_size=4) for _ in range(2)]))
def test_exchange_takes_unequal_pieces(pair: Pair, sizes: tuple[list[int], list[int]]) -> None:
    near, far = pair
    sent = [[os.urandom(size) for size in side] for side in sizes]
    got = [bytearray(sum(side)) for side in sizes]
    together(
        lambda: exchange([(near, sent[0])], [(near, [memoryview(got[1])])], timeout=WAIT_SECONDS),
        lambda: exchange([(far, sent[1])], [(far, [memoryview(got[0])])]),
    )
    assert [bytes(part) for part in got] == [b"".join(side) for side in sent]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_exchange_in_a_ring_of_three(tls: bool) -> None:
    """Everybody sends to the next and receives from the one before, more than the kernel holds."""
    with channel_pair(tls=tls) as ab, channel_pair(tls=tls) as bc, channel_pair(tls=tls) as ca:
        parts = [os.urandom(3 * MEGABYTE) for _ in range(3)]
        got = [bytearray(3 * MEGABYTE) for _ in range(3)]
        to_next, from_last = [ab[0], bc[0], ca[0]], [ca[1], ab[1], bc[1]]

        def turn(rank: int) -> Callable[[], None]:
            return lambda: exchange(
                [(to_next[rank], [parts[rank]])], [(from_last[rank], [memoryview(got[rank])])]
            )

        together(*map(turn, range(3)))
        assert [bytes(part) for part in got] == [parts[2], parts[0], parts[1]]


def test_exchange_gives_up_after_its_time(own_pair: Pair) -> None:
    near, far = own_pair
    with pytest.raises(PeerLost, match="did not answer in time"):
        exchange([], [(near, [memoryview(bytearray(1))])], timeout=0.1)
    with pytest.raises(PeerLost, match="did not answer in time"):
        exchange([(far, [bytes(64 * MEGABYTE)])], [], timeout=0.1)


def test_one_thread_may_send_while_another_receives(pair: Pair) -> None:
    near, far = pair
    data = os.urandom(2 * MEGABYTE)

    def push(channel: Channel) -> Callable[[], None]:
        return lambda: [channel.send(b"p", data) for _ in range(4)] and None

    def pull(channel: Channel) -> Callable[[], None]:
        def receive() -> None:
            got = bytearray(len(data))
            for _ in range(4):
                channel.receive()
                channel.receive_into(memoryview(got))
                assert got == data

        return receive

    together(push(near), pull(near), push(far), pull(far))


def test_the_end_of_the_other_side_is_one_clear_line(own_pair: Pair) -> None:
    near, far = own_pair
    near.peer = "machine beta (10.77.0.3)"
    far.close()
    for action in (near.receive, lambda: exchange([], [(near, [memoryview(bytearray(1))])])):
        with pytest.raises(PeerLost, match=r"^machine beta \(10\.77\.0\.3\) is gone \(it closed"):
            action()
    with pytest.raises(PeerLost, match="is gone"):
        for _ in range(50):
            near.send(b"x", bytes(MEGABYTE))
    near.close()
    near.close()
    with pytest.raises(PeerLost, match="is gone"):
        near.receive()


def test_closing_ends_a_wait_in_another_thread(own_pair: Pair) -> None:
    near, _ = own_pair
    caught: list[PeerLost] = []

    def wait() -> None:
        with pytest.raises(PeerLost, match="is gone") as error:
            near.receive()
        caught.append(error.value)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(0.1)
    near.close()
    waiting.join(WAIT_SECONDS)
    assert len(caught) == 1
    with pytest.raises(PeerLost, match="this side closed"):
        near.poll(0)


def test_an_end_in_the_middle_of_a_frame_is_noticed(own_pair: Pair) -> None:
    near, far = own_pair
    far.send(b"cut", b"12345")
    assert near.receive() == (b"cut", 5)
    near.receive_into(memoryview(bytearray(3)))
    far.close()
    with pytest.raises(PeerLost, match="is gone"):
        near.receive_into(memoryview(bytearray(2)))
        near.receive()


@pytest.mark.parametrize(
    "lengths", [(MAX_HEADER + 1, 0), (2**32 - 1, 0), (0, 2**64 - 1), (0, 2**40)]
)
def test_lengths_beyond_the_limits_end_the_connection(
    own_pair: Pair, lengths: tuple[int, int]
) -> None:
    near, far = own_pair
    near.send_raw([memoryview(struct.pack("<IQ", *lengths))])
    with pytest.raises(PeerLost, match="larger than the limit"):
        far.receive()
    assert far.fileno() == -1
    with pytest.raises(PeerLost, match="is gone"):
        near.receive()


def test_the_owner_may_set_a_lower_limit(own_pair: Pair) -> None:
    near, far = own_pair
    far.max_payload = 10
    near.send(b"ok", bytes(10))
    assert far.receive() == (b"ok", 10)
    far.skip(10)
    near.send(b"no", bytes(11))
    with pytest.raises(PeerLost, match="larger than the limit"):
        far.receive()


def test_what_was_not_announced_is_not_read(own_pair: Pair) -> None:
    near, far = own_pair
    near.send(b"h", b"123")
    far.receive()
    with pytest.raises(PeerLost, match="4 bytes were expected, it sent 3"):
        far.receive_into(memoryview(bytearray(4)))
    with pytest.raises(PeerLost, match="3 bytes of its last message were not expected"):
        far.receive()


def test_tls_hides_what_is_sent() -> None:
    """The same bytes: readable on the wire without TLS, not with it."""
    assert _seen_on_the_wire(tls=False)
    assert not _seen_on_the_wire(tls=True)


def _seen_on_the_wire(*, tls: bool) -> bool:
    with channel_pair(tls=tls) as (near, far):
        secret = b"nobody else reads this"
        near.send(secret)
        assert far.poll(WAIT_SECONDS)
        raw = socket.socket(fileno=os.dup(far.fileno()))
        with raw:
            return secret in raw.recv(4096, socket.MSG_PEEK)


def test_a_peer_that_lets_much_wait_is_not_taken_for_dead() -> None:
    """The kernel's own limit counts the time of a busy reader: off once much is sent."""
    with channel_pair() as (near, far):
        limit = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
        near.send(b"small")
        assert near._connection.getsockopt(*limit) > 0
        with pytest.raises(PeerLost, match="in time"):
            exchange([(near, [bytes(64 * MEGABYTE)])], [], timeout=0.1)
        assert near._connection.getsockopt(*limit) == 0
        assert far._connection.getsockopt(*limit) > 0
