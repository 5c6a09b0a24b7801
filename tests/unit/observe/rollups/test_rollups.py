"""Roll-ups: the sums of steps, read bit by bit, saved, and made anew if anything is wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_events import joined, steps
from made_history import begun, even, made_run

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.event_types import Event, encode
from phalanx.observe.events.timeline import read_ranks
from phalanx.observe.rollups import rank_rollup
from phalanx.observe.rollups.rank_rollup import WIDTHS, RankRollup
from phalanx.observe.rollups.rows import ROW_BYTES, RowColumn, Rows
from phalanx.observe.rollups.run_rollups import RunRollups

SUMMED = (
    "samples", "input", "compute", "send", "wait", "reduce", "update", "settle", "hidden",
)  # fmt: skip
ALL = (-1e9, 1e9)


def read_all(paths: RunPaths, rank: int = 0) -> RankRollup:
    paths.rollups.mkdir(exist_ok=True)
    rollup = RankRollup(rank, paths.events_of(rank), paths.rollups)
    read_rest(rollup)
    return rollup


def read_rest(rollup: RankRollup) -> None:
    for _ in range(1000):
        if not rollup.read() and not rollup.pending:
            return
    raise AssertionError("there is no end")


def rows_of(rollup: RankRollup) -> list[Rows]:
    return [rollup.rows(width, *ALL) for width in WIDTHS]


def same(found: list[Rows], expected: list[Rows]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)


seconds = st.floats(0.0, 30.0)


@st.composite
def workers_events(draw: st.DrawFn) -> list[Event]:
    """A worker that joins once or more, with steps and rounds at any time."""
    found: list[Event] = []
    now, first = draw(st.floats(0, 1e5)), 0
    for epoch in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            found.append(joined(time=now))
        for _ in range(draw(st.integers(0, 3))):
            count = draw(st.integers(1, 5))
            columns: dict[str, list[object]] = {name: [] for name in ("began", "samples", "loss")}
            parts = {name: [draw(seconds) for _ in range(count)] for name in SUMMED[1:]}
            for number in range(count):
                now += draw(seconds)
                columns["began"].append(now)
                now += sum(parts[name][number] for name in SUMMED[1:-1])
                columns["samples"].append(draw(st.integers(0, 9)))
                columns["loss"].append(draw(st.none() | st.floats(-5, 5)))
            stale = [draw(st.integers(0, 4)) for _ in range(count)]
            given_: dict[str, object] = {**columns, **parts, "staleness": stale}
            found.append(steps(0, count, epoch=epoch, first=first, **given_))
            first += count
    return found


anywhere = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@anywhere
@given(events=workers_events(), cuts=st.lists(st.floats(0, 1), max_size=6), again=st.booleans())
def test_any_number_of_pieces_gives_the_same(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], cuts: list[float], again: bool
) -> None:
    whole = made_run(tmp_path_factory.mktemp("whole"), {0: events})
    data = whole.events_of(0).read_bytes()
    expected = rows_of(read_all(whole))

    paths = made_run(tmp_path_factory.mktemp("pieces"), {0: []})
    rollup = read_all(paths)
    for end in [*sorted(int(cut * len(data)) for cut in cuts), len(data)]:
        paths.events_of(0).write_bytes(data[:end])
        read_rest(rollup)
        if again:
            rollup.save()
            rollup = read_all(paths)
    same(rows_of(rollup), expected)


@anywhere
@given(events=workers_events())
def test_sums_are_those_of_the_steps(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event]
) -> None:
    paths = made_run(tmp_path_factory.mktemp("run"), {0: events})
    (log,) = read_ranks(paths)
    known = [s for s in log.steps if s.loss is not None and s.samples]
    for rows in rows_of(read_all(paths)):
        for name in SUMMED:
            total = sum(getattr(row, name) for row in log.rows)
            assert rows[:, RowColumn[name.upper()]].sum() == pytest.approx(total)
        assert rows[:, RowColumn.STEPS].sum() == len(log.steps)
        assert rows[:, RowColumn.ROUNDS].sum() == len(log.rounds)
        assert rows[:, RowColumn.WEIGHT].sum() == sum(s.samples for s in known)
        assert rows[:, RowColumn.LOSS].sum() == pytest.approx(
            sum((s.loss or 0.0) * s.samples for s in known)
        )
        assert rows[:, RowColumn.STALENESS].sum() == sum(s.staleness for s in log.steps)
        if log.steps:
            assert rows[:, RowColumn.STALEST].max() == max(s.staleness for s in log.steps)
            assert rows[-1, RowColumn.NUMBER] == len(log.steps)
        if known:
            assert np.nanmin(rows[:, RowColumn.LOW]) == min(s.loss or 0.0 for s in known)
            assert np.nanmax(rows[:, RowColumn.HIGH]) == max(s.loss or 0.0 for s in known)


def test_the_scripts_own_time_is_between_steps_but_not_before_a_join(tmp_path: Path) -> None:
    later = even(began=500.0, count=10)
    paths = made_run(tmp_path, {0: [*begun(), even(count=10), joined(time=499.0), later]})
    minutes = read_all(paths).rows(60, *ALL)
    # 9 gaps of a tenth of a step in each part; the absence between them is nobody's time.
    assert minutes[:, RowColumn.OTHER].sum() == pytest.approx(2 * 9 * 0.05)
    assert minutes[:, RowColumn.OPENS].tolist() == [1.0, 1.0]


@pytest.fixture
def saved(tmp_path: Path) -> RunPaths:
    """A run of 100 seconds, whose roll-ups are saved."""
    paths = made_run(tmp_path, {0: [*begun(), even(count=200)]})
    read_all(paths).save()
    return paths


def test_what_was_saved_is_not_read_again(saved: RunPaths) -> None:
    expected = rows_of(read_all(saved))
    rollup = RankRollup(0, saved.events_of(0), saved.rollups)
    assert rollup.offset == saved.events_of(0).stat().st_size
    assert not rollup.read()
    same(rows_of(rollup), expected)
    assert rollup.told.machine == "here" and rollup.told.planned == 100.0


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def _folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[RunPaths], object]] = {
    "no folder": lambda paths: shutil.rmtree(paths.rollups),
    "no state": lambda paths: (paths.rollups / "rank-0.state").unlink(),
    "a wrong state": lambda paths: _flip(paths.rollups / "rank-0.state", 40),
    "an empty state": lambda paths: (paths.rollups / "rank-0.state").write_bytes(b""),
    "no rows": lambda paths: (paths.rollups / "rank-0.1s").unlink(),
    "few rows": lambda paths: os.truncate(paths.rollups / "rank-0.1s", 1000),
    "a wrong row": lambda paths: _flip(paths.rollups / "rank-0.1s", 5000),
    "wrong tens": lambda paths: _flip(paths.rollups / "rank-0.10s", 300),
    "rows of zeros": lambda paths: (paths.rollups / "rank-0.1s").write_bytes(bytes(99 * ROW_BYTES)),
    "a folder": lambda paths: _folder_instead(paths.rollups / "rank-0.1s"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_made_again(saved: RunPaths, damage: str) -> None:
    expected = rows_of(read_all(saved))
    DAMAGES[damage](saved)
    rollup = read_all(saved)
    rows_of(rollup)  # this may be the first to see the damage
    read_rest(rollup)
    same(rows_of(rollup), expected)
    if damage != "a folder":
        rollup.save()
        same(rows_of(RankRollup(0, saved.events_of(0), saved.rollups)), expected)


def test_another_version_is_made_again(saved: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_rollup, "VERSION", rank_rollup.VERSION + 1)
    assert RankRollup(0, saved.events_of(0), saved.rollups).offset == 0


@pytest.mark.parametrize("count", [3, 150, 5000])
def test_replaced_events_begin_anew(saved: RunPaths, count: int) -> None:
    live = read_all(saved)
    events = [*begun(), even(count=count, began=300.0)]
    other = made_run(saved.folder / "other", {0: events})
    saved.events_of(0).write_bytes(other.events_of(0).read_bytes())
    expected = rows_of(read_all(other))
    read_rest(live)
    same(rows_of(live), expected)
    same(rows_of(read_all(saved)), expected)


def test_only_whole_lines_count_and_what_is_no_event_is_left_out(tmp_path: Path) -> None:
    paths = made_run(tmp_path, {0: begun()})
    good, half = encode(even(count=4)), encode(even(count=4, began=102.0))
    bad = (
        b'not JSON\n\n{"type":"unknown"}\n[1,2]\n\xff\xfe\x00\n{"type":"steps","epoch":0}\n'
        b'{"type":"steps","rank":0,"epoch":0,"first":0,"began":["x"]}\n' + b"[" * 5000 + b"\n"
    )
    with paths.events_of(0).open("ab") as file:
        file.write(good + bad + half[:50])
    rollup = read_all(paths)
    assert rollup.told.number == 4
    assert not rollup.read() and not rollup.pending
    with paths.events_of(0).open("ab") as file:
        file.write(half[50:])
    read_rest(rollup)
    assert rollup.told.number == 8


def test_very_long_lines_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_rollup, "BLOCK", 4096)
    paths = made_run(tmp_path, {0: begun()})
    with paths.events_of(0).open("ab") as file:
        file.write(encode(even(count=4)) + b"x" * 50_000)
    rollup = read_all(paths)
    rollup.save()
    rollup = read_all(paths)
    with paths.events_of(0).open("ab") as file:
        file.write(b"x" * 50_000 + b"\n" + encode(even(count=4, began=102.0)))
    read_rest(rollup)
    assert rollup.told.number == 8
    assert len(rollup.steps(100.0, 110.0)) == 8


def test_absurd_figures_are_bounded(tmp_path: Path) -> None:
    odd = steps(
        0, 4, began=[100.0, -1e300, 1e300, 101.0], samples=[1, 4, 4, 4],
        compute=[1e300, -5.0, 0.1, 0.1], loss=[1e300, None, 2.0, 1.0],
    )  # fmt: skip
    paths = made_run(tmp_path, {0: [*begun()]})
    text = encode(odd)
    with paths.events_of(0).open("ab") as file:
        file.write(text.replace(b'"samples":[1,', b'"samples":[1' + b"0" * 400 + b","))
    for rows in rows_of(read_all(paths)):
        rows[:, [RowColumn.LOW, RowColumn.HIGH]] = 0.0
        assert np.all(np.isfinite(rows)) and np.all(np.diff(rows[:, RowColumn.BEGAN]) >= 0)


def test_a_second_reader_does_not_save(saved: RunPaths) -> None:
    first, second = RunRollups(saved), RunRollups(saved)
    for one in (first, second):
        assert one.share_read is not None
        one.read(60.0)
        assert one.share_read is None
    before = sorted(file.name for file in saved.rollups.iterdir())
    assert second.ranks[0].told.number == 200 == first.ranks[0].told.number
    second.close()
    assert sorted(file.name for file in saved.rollups.iterdir()) == before
    first.close()
    third = RunRollups(saved)
    assert not third.read(60.0), "nothing was left to read"
    third.close()


def test_the_folder_can_be_deleted_while_it_is_used(saved: RunPaths) -> None:
    expected = rows_of(read_all(saved))
    rollups = RunRollups(saved)
    rollups.read(60.0)
    rollups.save()
    shutil.rmtree(saved.rollups)
    assert not len(rollups.ranks[0].rows(1, *ALL)), "the rows are gone"
    rollups.read(60.0)
    same(rows_of(rollups.ranks[0]), expected)
    rollups.close()
    same(rows_of(RankRollup(0, saved.events_of(0), saved.rollups)), expected)


@pytest.mark.parametrize("obstacle", ["file", "link"])
def test_without_a_folder_the_run_is_still_read(tmp_path: Path, obstacle: str) -> None:
    paths = made_run(tmp_path / "run", {0: [*begun(), even(count=200)]})
    outside = tmp_path / "outside"
    outside.mkdir()
    if obstacle == "file":
        paths.rollups.write_text("in the way")
    else:
        paths.rollups.symlink_to(outside)
    rollups = RunRollups(paths)
    rollups.read(60.0)
    rollups.save()
    assert rollups.ranks[0].told.number == 200
    assert not list(outside.iterdir())
    rollups.close()


def test_a_full_disk_keeps_rows_in_memory(saved: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(read_all(saved))
    for file in saved.rollups.iterdir():
        file.unlink()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        rollup = read_all(saved)
        rollup.save()
        same(rows_of(rollup), expected)
    rollup.save()
    same(rows_of(RankRollup(0, saved.events_of(0), saved.rollups)), expected)


def test_single_steps_are_those_of_the_events(saved: RunPaths) -> None:
    (log,) = read_ranks(saved)
    rollup = read_all(saved)
    for first, last in ((100.0, 105.0), (102.0, 107.5), (150.0, 199.0), (100.0, 101.0)):
        rows = rollup.steps(first, last)
        wanted = [s for s in log.steps if first <= s.began <= last]
        found = rows[(rows[:, RowColumn.BEGAN] >= first) & (rows[:, RowColumn.BEGAN] <= last)]
        assert found[:, RowColumn.BEGAN].tolist() == [s.began for s in wanted]
        assert found[:, RowColumn.NUMBER].tolist() == [s.number + 1 for s in wanted]
