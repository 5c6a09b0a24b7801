"""What every codec keeps: any length and type, repeatable from its state, nothing lost for ever."""

from __future__ import annotations

import math

import pytest
import torch
from codec_cases import DTYPES, EVERY_CODEC, MATRIX, SIZE, make, normal, same, seen
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.core.spec.codecs import known_codecs, parse_codec
from phalanx.sync.codec.feedback import Compressor, ErrorFeedback
from phalanx.sync.codec.make import make_compressor

codecs = pytest.mark.parametrize("text", EVERY_CODEC)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def test_every_codec_of_the_registry_is_tried_here() -> None:
    assert {parse_codec(text).name for text in EVERY_CODEC} == set(known_codecs())


@codecs
@dtypes
def test_encoding_leaves_the_gradient_as_it_was_and_shares_no_memory(
    text: str, dtype: torch.dtype
) -> None:
    flat = normal(dtype=dtype)
    before = flat.clone()
    payload = make(text, parts=MATRIX).encode(flat)
    sent = [tensor.clone() for tensor in payload.tensors]
    assert torch.equal(flat, before)
    assert all(tensor.is_contiguous() for tensor in payload.tensors)
    flat.zero_()
    assert all(torch.equal(a, b) for a, b in zip(sent, payload.tensors, strict=True))


@codecs
@dtypes
@pytest.mark.parametrize("size", [0, 1])
def test_nothing_and_one_value(text: str, dtype: torch.dtype, size: int) -> None:
    flat = torch.full((size,), -1.5, dtype=dtype)
    assert torch.allclose(seen(make(text), flat), flat, rtol=1e-2)


@codecs
def test_payload_counts_its_bytes(text: str) -> None:
    payload = make(text, parts=MATRIX).encode(normal())
    assert payload.nbytes == sum(len(t.view(torch.uint8).flatten()) for t in payload.tensors) > 0


@codecs
def test_same_seed_same_messages(text: str) -> None:
    one, other = make(text, parts=MATRIX), make(text, parts=MATRIX)
    for step in range(3):
        assert same(one.encode(normal(seed=step)), other.encode(normal(seed=step)))


@codecs
def test_an_imported_state_repeats_the_messages(text: str) -> None:
    first = make(text, 1, MATRIX)
    first.encode(normal(seed=1))
    state = first.export_state()
    expected = [first.encode(normal(seed=step)) for step in (2, 3)]
    second = make(text, 99, MATRIX)
    second.import_state(state)
    assert all(
        same(second.encode(normal(seed=step)), e) for step, e in zip((2, 3), expected, strict=True)
    )


@codecs
@given(
    bad=st.sampled_from([math.nan, math.inf, -math.inf]),
    at=st.integers(0, SIZE - 1),
    dtype=st.sampled_from(DTYPES),
)
def test_what_is_not_finite_is_seen_by_the_receiver(
    text: str, bad: float, at: int, dtype: torch.dtype
) -> None:
    flat = normal(dtype=dtype)
    flat[at] = bad
    codec = make(text, parts=MATRIX)
    assert not torch.isfinite(seen(codec, flat)[at])
    assert torch.isfinite(seen(codec, normal(dtype=dtype))).all()


@pytest.mark.parametrize("text", ["int8:block=16", "int4:block=16"])
def test_a_bad_value_spoils_only_its_own_block(text: str) -> None:
    flat = normal()
    flat[20] = math.inf
    fine = torch.isfinite(seen(make(text), flat))
    assert not fine[16:32].any()
    assert fine[:16].all()
    assert fine[32:].all()


@pytest.mark.parametrize("name", known_codecs())
def test_compressors_have_feedback_where_the_traits_say_so(name: str) -> None:
    spec = parse_codec(name)
    compressor = make_compressor(spec, MATRIX, SIZE, torch.float32, 1)
    assert type(compressor) is (ErrorFeedback if spec.traits.feedback else Compressor)


@pytest.mark.parametrize("text", ["int8", "powersgd:rank=1"])
def test_a_state_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="does not fit"):
        make(text, parts=MATRIX).import_state({})


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
