"""How far a decoded value may be from what was encoded, and how many bytes it took."""

from __future__ import annotations

import pytest
import torch
from codec_cases import DTYPES, finite_values, make, normal, seen
from hypothesis import given
from hypothesis import strategies as st

from phalanx.sync.codec import quantised

LEVELS = {"int8": 127, "int4": 7}


@given(finite_values())
def test_float16_rounds_to_the_nearest(values: list[float]) -> None:
    flat = torch.tensor(values, dtype=torch.float32)
    found = seen(make("fp16"), flat)
    inside = flat.abs() <= 65504
    bound = flat.abs().double() * 2**-11 + 2**-25
    assert ((found.double() - flat.double()).abs() <= bound)[inside].all()
    assert (found[~inside].abs() >= 65504).all()


@given(finite_values())
def test_bfloat16_rounds_to_the_nearest_in_the_range_of_float32(values: list[float]) -> None:
    flat = torch.tensor(values, dtype=torch.float32)
    found = seen(make("bf16"), flat).double()
    inside = flat.abs() <= torch.finfo(torch.bfloat16).max
    bound = flat.abs().double() * 2**-8 + 2**-134
    assert ((found - flat.double()).abs() <= bound)[inside].all()


@pytest.mark.parametrize("name", LEVELS)
@given(
    values=finite_values(),
    block=st.integers(2, 12),
    chunk=st.integers(1, 30),
    dtype=st.sampled_from((torch.float32, torch.float64)),
    seed=st.integers(0, 1000),
)
def test_quantised_values_are_within_one_scale_of_their_block(
    name: str, values: list[float], block: int, chunk: int, dtype: torch.dtype, seed: int
) -> None:
    flat = torch.tensor(values, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantised, "CHUNK", chunk)
        quantised._cut.cache_clear()
        found = seen(make(f"{name}:block={block}", seed), flat)
    quantised._cut.cache_clear()
    assert torch.isfinite(found).all()
    for low in range(0, len(values), block):
        piece = flat[low : low + block].double()
        scale = max(float(piece.abs().max()) / LEVELS[name], torch.finfo(dtype).tiny)
        away = (found[low : low + block].double() - piece).abs()
        assert (away <= scale * 1.0001).all()
        assert (found[low : low + block][piece == 0] == 0).all()


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", ["max", "tiny", "smallest_normal"])
def test_the_limits_of_each_type(name: str, dtype: torch.dtype, value: str) -> None:
    extreme = getattr(torch.finfo(dtype), value)
    flat = torch.tensor([extreme, -extreme, 0.0, extreme / 2], dtype=dtype)
    found = seen(make(name), flat).double()
    scale = extreme / LEVELS[name] + torch.finfo(torch.float32).tiny
    assert ((found - flat.double()).abs() <= scale * 1.01).all()


@given(st.integers(0, 700), st.integers(2, 300))
def test_four_bits_are_packed_two_to_a_byte(size: int, block: int) -> None:
    codes, scales = make(f"int4:block={block}").encode(normal(size)).tensors
    assert codes.element_size() == 1
    assert size / 2 <= codes.numel() <= (size + 3) // 2
    assert scales.numel() == -(-size // block)


MESSAGES = 3000


@pytest.mark.parametrize(
    ("name", "levels", "dtype"), [("int8", 127, torch.float32), ("int4", 7, torch.float64)]
)
def test_rounding_is_unbiased(name: str, levels: int, dtype: torch.dtype) -> None:
    flat = normal(200, dtype=dtype)
    codec = make(name)
    found = torch.stack([seen(codec, flat) for _ in range(MESSAGES)]).double()
    scale = float(flat.abs().max()) / levels
    away = (found.mean(0) - flat.double()).abs() / scale
    assert away.max() < 5.5 * 0.5 / MESSAGES**0.5
    fraction = (flat.double() / scale).abs() % 1
    expected = (fraction * (1 - fraction)).sqrt()
    assert ((found.std(0) / scale - expected).abs() < 0.05).all()


def test_rounding_of_neighbours_and_of_other_seeds_is_independent() -> None:
    flat = torch.full((50_000,), 0.5) / 127
    flat[::256] = 1.0
    inner = torch.arange(50_000) % 256 != 0
    one, other = ((seen(make("int8", seed), flat) > 0.5 / 127)[inner].float() for seed in (1, 2))
    for a, b in ((one, other), (one[1:], one[:-1])):
        assert abs(float(torch.corrcoef(torch.stack((a, b)))[0, 1])) < 0.03
