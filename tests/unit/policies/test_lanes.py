"""Each row exactly once, whatever is asked for by whom."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.policies.lanes import Lanes, Range

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12)


def ranges_of(sizes: list[int]) -> list[Range]:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return list(pairwise(ends))


def rows_of(ranges: list[Range]) -> list[int]:
    return [row for start, end in ranges for row in range(start, end)]


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=100, deadline=None)
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
