"""Every sample and every row of a pass is given out exactly once; where phases end."""

from __future__ import annotations

from collections import Counter as Tally
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.core.spec import parse_spec
from phalanx.policies.lanes import Lanes, Range
from phalanx.policies.sample_assignment import (
    Counter,
    Segment,
    claim,
    lockstep,
    split,
    split_among_all,
)
from phalanx.policies.switch_points import boundaries, segments

sizes = st.integers(1, 300)
batches = st.integers(1, 64)
shares = st.lists(st.floats(0.01, 100), min_size=1, max_size=8)


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


@given(st.floats(0.01, 0.99), st.integers(2, 9), st.integers(1, 500), st.integers(1, 64))
def test_segments_cover_each_epoch_and_phases_only_grow(
    share: float, epochs: int, samples: int, batch: int
) -> None:
    ends = boundaries(parse_spec(f"allreduce@{share}/async"), epochs, samples, batch)
    phases = []
    for epoch in range(epochs):
        parts = segments(epoch, samples, ends)
        assert [p.start for p in parts] == [0, *(p.end for p in parts[:-1])]
        assert parts[-1].end == samples
        phases += [p.phase for p in parts]
    assert phases == sorted(phases)
    (epoch, position) = ends[0]
    assert position % batch == 0
    assert -1e-6 <= epoch * samples + position - share * epochs * samples < batch + 1e-6 or (
        position == 0
    )


def test_a_point_behind_the_end_is_refused() -> None:
    with pytest.raises(InputError, match="switches after epoch 4, but there are only 4"):
        boundaries(parse_spec("allreduce@4e/async"), 4, 100, 8)


def test_a_share_needs_the_number_of_epochs() -> None:
    with pytest.raises(InputError, match="length is not known"):
        boundaries(parse_spec("switch:at=0.5"), None, 100, 8)


SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12)


def ranges_of(sizes: list[int]) -> list[Range]:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return list(pairwise(ends))


def rows_of(ranges: list[Range]) -> list[int]:
    return [row for start, end in ranges for row in range(start, end)]


@settings(max_examples=120, deadline=None)
@given(SIZES, st.integers(1, 5), st.data())
def test_each_row_once(sizes: list[int], workers: int, data: st.DataObject) -> None:
    """Workers of changing speeds take in any order; now and then others go on, from the state."""
    lanes, total, seen = Lanes([ranges_of(sizes)], workers), sum(sizes), []
    while len(seen) < total:
        if data.draw(st.integers(0, 9)) == 0:
            lanes = Lanes.import_state(lanes.export_state(), data.draw(st.integers(1, 5)))
        worker = data.draw(st.integers(0, lanes.workers - 1))
        want = data.draw(st.integers(1, 50))
        found = rows_of(lanes.take(worker, want))
        assert len(found) == min(want, total - len(seen))  # never fewer than there are
        seen += found
    assert sorted(seen) == list(range(total))
    assert all(lanes.take(worker, 1) == [] for worker in range(lanes.workers))


def test_each_window_is_opened_by_one() -> None:
    lanes = Lanes([ranges_of([100] * 12)], 3)
    opened: dict[int, set[int]] = {}
    for _ in range(12 * 100 // 30):
        for worker in range(3):
            for start, _ in lanes.take(worker, 10):
                opened.setdefault(start // 100, set()).add(worker)
    assert all(len(workers) == 1 for workers in opened.values()) and len(opened) == 12


def test_what_is_read_next_is_known() -> None:
    lanes = Lanes([ranges_of([10] * 5)], 2)
    assert [lanes.next_window(0), lanes.next_window(1)] == [20, 30]
    lanes.take(0, 11)  # has begun with what it knew, and knows the next
    assert lanes.next_window(0) == 40


@settings(max_examples=50, deadline=None)
@given(st.lists(SIZES, min_size=2, max_size=4), st.data())
def test_gpu_copies_stay_at_home(lines: list[list[int]], data: st.DataObject) -> None:
    whole = ranges_of([size for line in lines for size in line])
    own = [[whole.pop(0) for _ in line] for line in lines]
    lanes, seen = Lanes(own, len(lines)), [[] for _ in lines]  # type: ignore[var-annotated]
    while any(left := lanes.left()):
        assert left == [sum(line) - len(found) for line, found in zip(lines, seen, strict=True)]
        worker = data.draw(st.integers(0, len(lines) - 1))
        seen[worker] += rows_of(lanes.take(worker, data.draw(st.integers(1, 50))))
    assert seen == [rows_of(line) for line in own]
