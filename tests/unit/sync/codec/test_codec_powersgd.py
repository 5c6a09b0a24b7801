"""PowerSGD: low rank where it is smaller, exact elsewhere, better with every message."""

from __future__ import annotations

import pytest
import torch
from codec_cases import COLUMNS, DTYPES, MATRIX, RAGGED, ROWS, SIZE, make, normal, seen
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from phalanx.sync.codec.codec import Part
from phalanx.sync.codec.make import parts_of
from phalanx.sync.state.layout import make_layout

INSIDE = slice(RAGGED, RAGGED + ROWS * COLUMNS)


def test_a_matrix_of_low_rank_survives_one_message() -> None:
    flat = normal()
    flat[INSIDE] = torch.outer(normal(ROWS, 1), normal(COLUMNS, 2)).flatten()
    assert torch.allclose(seen(make("powersgd:rank=1", parts=MATRIX), flat), flat, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ragged_ends_and_vectors_are_exact_and_the_rest_is_not(dtype: torch.dtype) -> None:
    flat = normal(dtype=dtype)
    payload = make("powersgd:rank=1", parts=MATRIX).encode(flat)
    found = seen(make("powersgd:rank=1", parts=MATRIX), flat)
    assert torch.equal(found[:RAGGED], flat[:RAGGED])
    assert torch.equal(found[-3:], flat[-3:])
    assert not torch.allclose(found[INSIDE], flat[INSIDE], rtol=0.1)
    width = max(4, flat.element_size())
    assert payload.nbytes == (RAGGED + 3) * flat.element_size() + (ROWS + COLUMNS) * width


def test_a_matrix_that_would_not_become_smaller_is_sent_exactly() -> None:
    flat = normal()
    codec = make("powersgd:rank=6", parts=MATRIX)  # 6 * (12 + 10) numbers instead of 120
    assert torch.equal(seen(codec, flat), flat)
    assert codec.encode(flat).nbytes == flat.nbytes


def test_the_warm_start_approaches_the_best_factors() -> None:
    left, _ = torch.linalg.qr(normal(40 * 40, 1).view(40, 40))
    right, _ = torch.linalg.qr(normal(30 * 30, 2).view(30, 30))
    strengths = 0.7 ** torch.arange(30)
    matrix = (left[:, :30] * strengths) @ right.T
    best = float(strengths[3:].norm())
    codec = make("powersgd:rank=3", parts=(Part(0, 1200, 30),))
    away = [float((seen(codec, matrix.flatten()) - matrix.flatten()).norm()) for _ in range(12)]
    assert away[0] > 1.02 * best
    assert best * 0.999 <= away[-1] < 1.01 * best


@given(st.sampled_from([0.0, 1e-42, 1e-30, 1e-10, 1e10]), st.integers(0, 50))
def test_a_gradient_that_vanishes_or_grows_does_not_spoil_the_next(size: float, seed: int) -> None:
    codec = make("powersgd:rank=2", seed, MATRIX)
    for step in range(3):
        assert torch.isfinite(seen(codec, normal(seed=step) * size)).all()
    flat = torch.zeros(SIZE)
    factors = normal(ROWS * 2, 1).view(ROWS, 2) @ normal(COLUMNS * 2, 2).view(2, COLUMNS)
    flat[INSIDE] = factors.flatten()
    seen(codec, flat)
    assert torch.allclose(seen(codec, flat), flat, atol=1e-4)


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_parts_know_the_rows_of_the_parameters_in_a_shard(shards: int) -> None:
    convolution = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    parameters = [*nn.Linear(17, 23).parameters(), *convolution.parameters()]
    layout = make_layout([(0, p) for p in parameters], shards)
    rows = torch.empty(layout.size)
    for place, parameter in zip(layout.places, parameters, strict=True):
        numbers = torch.arange(parameter.shape[0]).view(-1, *[1] * (parameter.dim() - 1))
        place.view(rows).copy_(numbers.expand(parameter.shape))
    widths = set()
    for shard in range(shards):
        low, high = layout.bounds(shard)
        flat, at = rows[low:high], 0
        for part in parts_of(layout, shard):
            assert part.start == at
            position = part.offset + torch.arange(part.end - part.start)
            expected = flat[part.start] + position // part.columns
            assert torch.equal(flat[part.start : part.end], expected)
            widths.add(part.columns)
            at = part.end
        assert at == high - low
    assert widths == {17, 27, 1}


def test_a_dimension_of_one_is_not_taken_for_rows() -> None:
    layout = make_layout([(0, torch.zeros(1, 8, 5))], 1)
    assert parts_of(layout, 0) == (Part(0, 40, 5),)
