"""Sums that begin before they are whole, and the thread that moves their bytes."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from test_collective import bits, values
from test_links import House
from torch import Tensor

from phalanx.core.errors import PeerLost
from phalanx.sync.collective.algorithms import direct, striped
from phalanx.sync.collective.algorithms.ahead import AheadSum, EarlySum, SenderThread
from phalanx.sync.collective.algorithms.striped import Stripe, StripedSum

COUNT = 300_000  # more than the kernel takes at once
CUTS = [290_000, 200_000, 120_000, 31, 0]
FACTORS = [1.0, 0.5, 1 / 3, 1.0]


def make(house: House, rank: int, kind: str, flat: Tensor) -> EarlySum:
    if kind != "striped":
        return AheadSum(house.open(rank, tls=kind == "tls"), flat, CUTS)
    opened = [house.open(rank, f"stripe-{number}")._channels for number in range(3)]
    by_peer = {peer: [Stripe(channels[peer]) for channels in opened] for peer in opened[0]}
    return StripedSum(rank, by_peer, flat, CUTS)


def test_only_what_moves_before_all_is_final_is_hidden() -> None:
    house = House(2)

    def act(rank: int) -> list[float]:
        ahead, found = make(house, rank, "plain", torch.ones(COUNT)), []
        for early in (True, False, True):
            if early:
                ahead.ready(CUTS[1])
            ahead.final()
            ahead.start()
            ahead.finish()
            found.append(ahead.hidden)
        return found

    try:
        for first, second, third in house.together(act):
            assert first > 0.0 and second == 0.0 and third > 0.0
    finally:
        house.close()


@pytest.mark.parametrize("kind", ["plain", "tls", "striped"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_same_bits_and_bytes_whenever_a_piece_is_ready(
    size: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(striped, "LARGEST", 100_000)
    house = House(size, tls=kind == "tls")

    def act(rank: int) -> tuple[list[Tensor], list[int]]:
        flat = torch.empty(COUNT)
        order, ahead = random.Random(rank), make(house, rank, kind, flat)
        sums, sent = [], []
        for turn in range(4):
            flat.copy_(values(rank + turn, COUNT, torch.float32))
            if turn == 2:  # the second to go, and whoever has begun throws it away
                ahead.ready(order.choice(CUTS))
                flat.neg_()
                ahead.discard()
            for cut in sorted(order.sample(CUTS, 2), reverse=True):
                ahead.ready(cut)
            sent.append(ahead.finish(FACTORS[turn]))
            sums.append(flat.clone())
        return sums, sent

    try:
        found = house.together(act)
    finally:
        house.close()
    sums, _ = found[0]
    for rank, (theirs, sent) in enumerate(found):
        once = direct.bytes_sent(COUNT * 4, size, rank)
        thrown = COUNT * 4 if size == 2 else once - (size - 1) * _part(size, rank)
        assert sent == [once, once, once + thrown, once]
        if kind != "striped":
            assert sum(sent) == sum(links.sent for links in house.opened if links.rank == rank)
        assert [bits(flat) for flat in theirs] == [bits(flat) for flat in sums]
    for turn, flat in enumerate(sums):
        sign = (-1 if turn == 2 else 1) * FACTORS[turn]
        terms = [sign * values(rank + turn, COUNT, torch.float32) for rank in range(size)]
        assert torch.allclose(flat, torch.stack(terms).sum(0), rtol=0, atol=1e-4)


def _part(size: int, rank: int) -> int:
    """What a participant has summed, it sends to all others: not of what is thrown away."""
    from phalanx.sync.collective.parts import part_sizes

    return part_sizes(COUNT * 4, size)[rank]


SOON = 10.0


class SetAgain(threading.Event):
    """Its owner rests and begins again just when the thread looks for the first time."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks > 1 and super().is_set()


def test_who_begins_again_while_the_thread_looks_is_heard() -> None:
    moved = threading.Event()

    def move() -> bool:
        moved.set()
        return False

    sender = SenderThread(move)
    sender._wanted = SetAgain()
    sender.begin()
    try:
        assert moved.wait(SOON)
    finally:
        sender.close()


def test_a_lost_peer_ends_the_moving_and_not_the_thread() -> None:
    lost, again = threading.Event(), threading.Event()

    def move() -> bool:
        if lost.is_set():
            again.set()
            return False
        lost.set()
        raise PeerLost("it is gone", "")

    sender = SenderThread(move)
    sender.begin()
    assert lost.wait(SOON)
    with sender.lock:  # the thread has heard of it
        pass
    sender.begin()
    try:
        assert again.wait(SOON)
    finally:
        sender.close()
