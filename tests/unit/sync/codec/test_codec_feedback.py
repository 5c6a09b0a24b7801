"""Error feedback: nothing is lost, only late."""

from __future__ import annotations

import math

import pytest
import torch
from codec_cases import MATRIX, SIZE, make, normal
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.core.spec.codecs import parse_codec
from phalanx.sync.codec.feedback import Compressor, ErrorFeedback
from phalanx.sync.codec.make import make_compressor

WITH_FEEDBACK = ("topk:ratio=0.02", "threshold:value=0.8", "powersgd:rank=1")
compressors = pytest.mark.parametrize("text", WITH_FEEDBACK)


def sender(text: str, seed: int = 3, dtype: torch.dtype = torch.float32) -> Compressor:
    return make_compressor(parse_codec(text), MATRIX, SIZE, dtype, seed)


@pytest.mark.parametrize("text", [*WITH_FEEDBACK, "int8", "int4", "bf16", "fp16"])
@given(
    steps=st.integers(1, 30),
    seed=st.integers(0, 999),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_what_was_decoded_and_what_is_kept_add_up_to_all_gradients(
    text: str, steps: int, seed: int, size: float, dtype: torch.dtype
) -> None:
    compressor = ErrorFeedback(make(text, seed, MATRIX), SIZE, dtype)
    given_, received = torch.zeros(SIZE).double(), torch.zeros(SIZE).double()
    for step in range(steps):
        flat = (normal(seed=seed + step) * size).to(dtype)
        given_ += flat.double()
        compressor.compress(flat)
        received += flat.double()
    total = received + compressor.export_state()["residual"].double()
    assert (total - given_).norm() <= 1e-4 * given_.norm()


@compressors
def test_what_is_kept_is_sent_later(text: str) -> None:
    compressor, flat = sender(text), normal()
    compressor.compress(flat)
    waiting = compressor.export_state()["residual"].norm()
    assert waiting > 0
    for _ in range(500):
        compressor.compress(torch.zeros(SIZE))
    assert compressor.export_state()["residual"].abs().max() < (
        0.8 if text.startswith("threshold") else 1e-3 * waiting
    )


@pytest.mark.parametrize("text", [*WITH_FEEDBACK, "int8", "fp16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_decoded_values_are_left_in_the_gradient(text: str, dtype: torch.dtype) -> None:
    compressor, flat = sender(text, dtype=dtype), normal(dtype=dtype)
    before = flat.clone()
    payload = compressor.compress(flat)
    receiver = torch.empty_like(flat)
    make(text, parts=MATRIX).decode(payload, receiver)
    assert torch.equal(flat, receiver)
    if dtype == torch.float32:
        assert not torch.equal(flat, before)


@compressors
def test_the_exported_state_is_a_copy(text: str) -> None:
    compressor = sender(text)
    compressor.compress(normal())
    state = compressor.export_state()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    compressor.compress(normal(seed=1))
    assert all(torch.equal(state[name], kept[name]) for name in kept)
    assert not torch.equal(compressor.export_state()["residual"], kept["residual"])


@compressors
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("count", [1, SIZE])
def test_a_bad_step_is_seen_once_and_then_forgotten(text: str, bad: float, count: int) -> None:
    compressor = sender(text)
    flat = normal()
    flat[20 : 20 + count] = bad
    compressor.compress(flat)
    assert not torch.isfinite(flat).all()
    for step in range(3):
        flat = normal(seed=step)
        compressor.compress(flat)
        assert torch.isfinite(flat).all()


def test_a_residual_of_another_size_is_refused() -> None:
    with pytest.raises(InputError, match="does not fit: 'residual'"):
        sender("topk").import_state({"residual": torch.zeros(SIZE + 1)})
