"""Links over real channels on loopback, the dispatcher, headers of payloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
import pytest
import torch
from torch import Tensor

from phalanx.core.errors import PeerLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.collective.algorithms import butterfly, direct, ring, tree
from phalanx.sync.collective.links import Links, open_links, raw
from phalanx.sync.connect import dispatcher as dispatchers
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.dispatcher import Credentials, Dispatcher
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.connect.listener import Listener
from phalanx.sync.connect.payloads import BLOCK, encode_header, make_room, rest_length

T = TypeVar("T")
HERE = "127.0.0.1"
ALGORITHMS = {"direct": direct, "ring": ring, "tree": tree, "butterfly": butterfly}


class House:
    """Participants that are threads, each with a listener and a dispatcher of its own."""

    def __init__(self, size: int, tls: bool = False) -> None:
        self.key = RunKey.new()
        self.size = size
        self.listeners = [Listener(HERE, self.key, tls=tls) for _ in range(size)]
        self.dispatchers = [Dispatcher(listener) for listener in self.listeners]
        self.addresses = [(HERE, listener.port) for listener in self.listeners]
        self.names = [f"machine {letter}" for letter in "abcdefgh"[:size]]
        self.opened: list[Links] = []

    def open(
        self,
        rank: int,
        tag: str = "all",
        timeout: float = 20.0,
        patience: float | None = None,
        tls: bool = False,
    ) -> Links:
        links = open_links(
            rank,
            self.addresses,
            Credentials(self.key, HERE, self.dispatchers[rank], tls),
            tag,
            timeout=timeout,
            names=self.names,
            patience=patience,
        )
        self.opened.append(links)
        return links

    def together(self, act: Callable[[int], T]) -> list[T]:
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(act, range(self.size)))

    def close(self) -> None:
        for one in [*self.opened, *self.dispatchers, *self.listeners]:
            one.close()


@pytest.fixture
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    made = House(request.param)
    yield made
    made.close()


@pytest.mark.parametrize("house", [3], indirect=True)
def test_every_algorithm_over_real_channels(house: House) -> None:
    # Far more than the kernel buffers, so that one-sided sending would stand still.
    count = 2_000_003

    def act(rank: int) -> list[Tensor]:
        links = house.open(rank)
        results = []
        for algorithm in ALGORITHMS.values():
            flat = torch.arange(count, dtype=torch.float32) % 7 + rank
            before = links.sent
            algorithm.all_reduce(links, flat)
            assert links.sent - before == algorithm.bytes_sent(4 * count, house.size, rank)
            results.append(flat)
        return results

    offset = sum(range(house.size))
    expected = (torch.arange(count, dtype=torch.float32) % 7) * house.size + offset
    for results in house.together(act):
        assert all(torch.equal(flat, expected) for flat in results)


@pytest.mark.parametrize("count", [5, 100_000, 1_000_000])
@pytest.mark.parametrize("house", [2], indirect=True)
def test_patience_has_an_end_where_it_is_given(house: House, count: int) -> None:
    def act(rank: int) -> str:
        links = house.open(rank, patience=0.3)
        if rank == 0:
            with pytest.raises(PeerLost, match=r"machine b is gone \(it did not answer in time"):
                direct.all_reduce(links, torch.ones(count))
        return "done"

    assert house.together(act) == ["done", "done"]


def test_only_plain_memory_can_be_sent() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        raw(torch.zeros(4, 4)[:, 1])
    view = raw(torch.arange(3, dtype=torch.int16))
    assert bytes(view) == b"\0\0\1\0\2\0"
    assert len(raw(torch.zeros(0))) == 0


@pytest.mark.parametrize("house", [3], indirect=True)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_participant_lost_on_the_way_is_named(house: House, name: str) -> None:
    def act(rank: int) -> str:
        links = house.open(rank)
        try:
            for _ in range(1000):
                if rank == 1:
                    return "left"
                ALGORITHMS[name].all_reduce(links, torch.ones(300_000))
            return "went on"
        except PeerLost as lost:
            return lost.cause
        finally:
            links.close()

    words = house.together(act)
    assert any("machine b is gone" in word for word in words)
    assert all("is gone" in words[rank] for rank in (0, 2))


@pytest.mark.parametrize("house", [2], indirect=True)
def test_one_that_never_connects_is_named(house: House) -> None:
    with pytest.raises(PeerLost, match="machine b did not connect"):
        house.open(0, timeout=0.3)


@pytest.mark.parametrize("house", [2], indirect=True)
def test_one_that_cannot_be_reached_is_named(house: House) -> None:
    house.listeners[0].close()
    with pytest.raises(PeerLost, match="machine a cannot be reached"):
        house.open(1, timeout=0.3)


@pytest.mark.parametrize("house", [2], indirect=True)
def test_the_dispatcher_drops_those_who_are_not_expected(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatchers, "MAX_WAITING", 3)
    port = house.addresses[0][1]
    strangers = [
        connect(HERE, port, house.key, Introduction("not expected", number, 0))
        for number in range(8)
    ]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(house.open, range(2))
    with pytest.raises(PeerLost):
        # Everybody before the one that was expected has been let in and looked at.
        caller = Introduction("all", 7, 0)
        house.dispatchers[0].expect(caller, time.monotonic() + 0.5, "machine z")
    assert sum(channel.poll(0.0) for channel in strangers) >= 5
    with ThreadPoolExecutor(2) as pool:
        flats = [torch.ones(3), torch.ones(3)]
        list(pool.map(direct.all_reduce, (first, second), flats))
    assert flats[0].tolist() == [2.0, 2.0, 2.0]
    for channel in strangers:
        channel.close()


def test_headers_are_checked_before_memory_is_made() -> None:
    block, rest = encode_header([torch.zeros(3, 2), torch.zeros(0, dtype=torch.uint8)])
    assert len(block) == BLOCK and rest == b"" and rest_length(block, "x") == 0
    made = make_room(block, "x")
    assert [(t.dtype, t.shape) for t in made] == [(torch.float32, (3, 2)), (torch.uint8, (0,))]

    def framed(value: object) -> bytes:
        data = msgspec.msgpack.encode(value)
        return len(data).to_bytes(4, "little") + data

    with pytest.raises(PeerLost, match="header of 4294967295 bytes"):
        rest_length(b"\xff" * BLOCK, "x")
    for wrong in ([["f32", [1 << 40]]], [["f99", [1]]], [["f32", [-1, -(1 << 40)]]], [["f32"]], 7):
        with pytest.raises(PeerLost, match="machine a"):
            make_room(framed(wrong), "machine a")
    with pytest.raises(PeerLost, match="the most a message may have is 8"):
        make_room(block, "x", limit=8)
