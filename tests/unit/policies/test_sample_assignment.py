"""The ledger gives out every position of a pass exactly once."""

from __future__ import annotations

import itertools
from collections import Counter as Tally

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.policies.sample_assignment import (
    Counter,
    Segment,
    claim,
    lockstep,
    split,
    split_among_all,
)

sizes = st.integers(1, 300)
batches = st.integers(1, 64)
shares = st.lists(st.floats(0.01, 100), min_size=1, max_size=8)


@given(sizes, shares)
def test_a_split_loses_and_repeats_nothing(total: int, parts: list[float]) -> None:
    ends = split(total, parts)
    assert ends == sorted(ends)
    assert ends[0] >= 0
    assert ends[-1] == total


@given(sizes, batches, shares)
def test_lockstep_covers_a_segment_once(samples: int, batch: int, parts: list[float]) -> None:
    segment = Segment(0, samples, 0)
    columns = [list(lockstep(segment, batch, rank, parts)) for rank in range(len(parts))]
    assert len({len(column) for column in columns}) == 1
    leases = [lease for column in columns for lease in column if lease.samples]
    seen = Tally(n for lease in leases for n in range(lease.start, lease.end))
    assert seen == Tally(range(samples))
    for row in zip(*columns, strict=True):
        assert sum(lease.samples for lease in row) <= batch
        assert sum(lease.share for lease in row) <= 1 + 1e-9
        assert sum(lease.part for lease in row) == pytest.approx(1.0)
        assert row[0].samples, "the first worker is never without"


@given(st.data(), sizes, st.integers(1, 20), st.integers(1, 5), st.integers(1, 4))
def test_claims_cover_every_pass_once(
    data: st.DataObject, samples: int, want: int, workers: int, passes: int
) -> None:
    """Workers claim in any order; each goes to the next pass when its own is given out."""
    counter, at = Counter(-1, 0), [0] * workers
    segment, seen = Segment(0, samples, 0), Tally[tuple[int, int]]()
    while any(number < passes for number in at):
        waiting = [w for w in range(workers) if at[w] < passes]
        worker = data.draw(st.sampled_from(waiting))
        counter, lease = claim(counter, at[worker], segment, want)
        if lease is None:
            at[worker] += 1
            continue
        assert 0 < lease.samples <= want
        seen.update((at[worker], n) for n in range(lease.start, lease.end))
    assert seen == Tally((p, n) for p in range(passes) for n in range(samples))


def test_nobody_is_left_without_a_sample_where_there_are_enough() -> None:
    shares = [0.5, *[0.5 / 7] * 7]
    ends = split_among_all(8, shares)
    assert ends == [1, 2, 3, 4, 5, 6, 7, 8]
    assert split_among_all(100, [0.8, 0.2]) == split(100, [0.8, 0.2])
    assert split_among_all(2, [1.0, 1.0, 1.0])[-1] == 2


@given(st.integers(1, 60), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6))
def test_nobody_is_left_with_a_single_sample(total: int, shares: list[float]) -> None:
    ends = split_among_all(total, shares, least=2)
    parts = [b - a for a, b in itertools.pairwise([0, *ends])]
    assert sum(parts) == total and min(parts) >= 0
    assert 1 not in parts or total == 1
    assert total < 2 * len(shares) or all(parts)


@given(st.integers(2, 60), st.integers(1, 9))
def test_no_claim_leaves_a_single_sample(total: int, want: int) -> None:
    counter, sizes = Counter(-1, 0), []
    while True:
        counter, lease = claim(counter, 0, Segment(0, total, 0), want, least=2)
        if lease is None:
            break
        sizes.append(lease.samples)
    assert sum(sizes) == total and min(sizes) >= 2
