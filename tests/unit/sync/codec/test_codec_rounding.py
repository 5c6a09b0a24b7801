"""Stochastic rounding: the mean of many messages is the value."""

from __future__ import annotations

import pytest
import torch
from codec_cases import make, normal, seen

MESSAGES = 3000


@pytest.mark.parametrize(("name", "levels"), [("int8", 127), ("int4", 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
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
