"""Encoded sums that begin before they are whole, against each host's message made at once."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
from codec_cases import make, normal
from test_collective import bits
from test_links import House
from torch import Tensor

from phalanx.sync.codec.codec import Piecewise
from phalanx.sync.collective.algorithms.ahead import EarlyExchange
from phalanx.sync.reduce.early_encoded import EncodedSum

COUNT = 700_001  # several spans of a quantised codec, and a ragged end
CUTS = [690_000, 300_000, 262_144, 31, 0]
FACTORS = [1.0, 0.5, 1.0, 1 / 3, 1.0]
VAIN, IDLE, SPOILT = 1, 2, 3
"""In these turns something goes in vain; the last one is idle; the first one's is not finite."""


def given(rank: int, turn: int, size: int) -> Tensor | None:
    """What a participant gives in a turn."""
    if turn == IDLE and rank == size - 1:
        return None
    flat = normal(COUNT, seed=10 * turn + rank)
    flat[7] = -0.0  # of which the sum is none
    if turn == SPOILT and rank == 0:
        flat[-1] = math.inf
    return flat


def piecewise(text: str, seed: int) -> Piecewise:
    codec = make(text, seed)
    assert isinstance(codec, Piecewise)
    return codec


def expected(text: str, size: int) -> list[Tensor]:
    """As between hosts without going ahead."""
    codecs, sums = [make(text, rank) for rank in range(size)], []
    for turn, factor in enumerate(FACTORS):
        total, out = torch.zeros(COUNT), torch.empty(COUNT)
        for rank, codec in enumerate(codecs):
            flat = given(rank, turn, size)
            if flat is not None and bool(flat.isfinite().all()):
                codec.decode(codec.encode(flat), out)
                total.add_(out)
            elif flat is not None:
                total.add_(torch.nan)
        sums.append(total.mul_(factor) if factor != 1.0 else total)
    return sums


def turns(house: House, rank: int, text: str) -> tuple[list[Tensor], Sequence[int]]:
    flat, codec, order = torch.empty(COUNT), piecewise(text, rank), random.Random(rank)
    has = [True]
    exchange = EarlyExchange(house.open(rank))
    early = EncodedSum(
        exchange, flat, torch.empty(COUNT), CUTS, piecewise(text, 0), lambda: codec, lambda: has[0]
    )
    sums, sent = [], []
    for turn, factor in enumerate(FACTORS):
        mine = given(rank, turn, house.size)
        has[0] = mine is not None
        flat.copy_(torch.full((COUNT,), 3.0) if mine is None else mine)
        if turn == VAIN:
            flat.neg_()
            early.ready(order.choice(CUTS))
            early.start()
            flat.neg_()
            early.discard()
        for cut in sorted(order.sample(CUTS, 2), reverse=True):
            early.ready(cut)
        if order.random() < 0.5:
            early.start()
        sent.append(early.finish(factor))
        sums.append(flat.clone())
    early.close()
    return sums, sent


@pytest.mark.parametrize("text", ["fp16", "bf16", "int8", "int8:block=100", "int4", "int4:block=7"])
@pytest.mark.parametrize("size", [2, 3])
def test_the_same_bits_whenever_a_piece_is_ready(size: int, text: str) -> None:
    house = House(size)
    try:
        found = house.together(lambda rank: turns(house, rank, text))
    finally:
        house.close()
    for theirs, sent in found:
        assert [bits(a) for a in theirs] == [bits(b) for b in expected(text, size)]
        once = sent[0]
        assert sent == [once, 2 * once, once, once, once]
