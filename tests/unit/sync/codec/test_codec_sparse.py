"""Top-k and threshold: exactly the large values, nothing else."""

from __future__ import annotations

import pytest
import torch
from codec_cases import finite_values, make, normal, seen
from hypothesis import given
from hypothesis import strategies as st

from phalanx.sync.codec import sparse


@given(finite_values(), st.floats(0.01, 0.45))
def test_topk_sends_the_largest_exactly(values: list[float], ratio: float) -> None:
    flat = torch.tensor(values, dtype=torch.float32)
    index, *sent = make(f"topk:ratio={ratio}").encode(flat).tensors
    if not sent:
        assert torch.equal(index, flat)  # two or fewer values: all of them take less room
        assert len(values) <= 2
        return
    count = max(1, int(len(values) * ratio))
    assert index.dtype == torch.int32
    assert len(set(index.tolist())) == index.numel() == count
    assert torch.equal(sent[0], flat[index.long()])
    expected = flat.abs().sort(descending=True).values[:count]
    assert torch.equal(sent[0].abs().sort(descending=True).values, expected)
    found = seen(make(f"topk:ratio={ratio}"), flat)
    assert torch.equal(found[index.long()], sent[0])
    assert found.count_nonzero() <= count


@given(
    seed=st.integers(0, 99),
    ties=st.booleans(),
    period=st.sampled_from([1, 61, 64, 5000]),
    count=st.integers(1, 3000),
)
def test_looking_among_candidates_finds_the_same_as_looking_everywhere(
    seed: int, ties: bool, period: int, count: int
) -> None:
    magnitudes = normal(20_000, seed).abs()
    magnitudes[::period] *= 100  # a pattern that a sample may miss, or see nothing else of
    if ties:
        magnitudes = magnitudes.round()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "_WORTH_SAMPLING", 1000)
        found = sparse.largest(magnitudes, count)
    assert len(set(found.tolist())) == count
    expected = magnitudes.sort(descending=True).values[:count]
    assert torch.equal(magnitudes[found].sort(descending=True).values, expected)


def test_nan_counts_as_the_largest_also_among_candidates() -> None:
    flat = normal(100_000)
    flat[4321] = torch.nan
    assert 4321 in make("topk:ratio=0.00001").encode(flat).tensors[0]


@given(finite_values(), st.floats(0, 1e30))
def test_threshold_sends_what_reaches_it(values: list[float], value: float) -> None:
    flat = torch.tensor(values, dtype=torch.float32)
    found = seen(make(f"threshold:value={value}"), flat)
    large = flat.abs() >= value
    assert torch.equal(found[large], flat[large])
    if int(large.sum()) * 2 < len(values):
        assert not found[~large].any()


@pytest.mark.parametrize("text", ["topk:ratio=1", "threshold:value=0"])
def test_sending_everything_needs_no_positions(text: str) -> None:
    flat = normal(50)
    assert make(text).encode(flat).nbytes == flat.nbytes
    assert torch.equal(seen(make(text), flat), flat)
