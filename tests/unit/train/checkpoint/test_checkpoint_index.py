"""The folder of checkpoints: which are kept, which is the best, what comes next."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from checkpoint_making import GRACE, begin_write, newest, private_of, write_whole_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.checkpoint.checkpoint_manifest import (
    MANIFEST,
    BestRecord,
    folder_name,
    number_of,
    partial_name,
    read_manifest,
)
from phalanx.train.checkpoint.writer import Writer


def empty_checkpoints(folder: Path, numbers: list[int]) -> None:
    for number in numbers:
        (folder / folder_name(number)).mkdir()


@settings(deadline=None, max_examples=50)
@given(
    st.sets(st.integers(1, 10**7), max_size=8),
    st.integers(1, 4),
    st.none() | st.integers(0, 7),
)
def test_the_newest_and_the_best_are_kept(there: set[int], keep: int, at: int | None) -> None:
    ordered = sorted(there)
    best = ordered[at] if at is not None and at < len(ordered) else None
    with TemporaryDirectory() as name:
        folder = Path(name)
        empty_checkpoints(folder, ordered)
        if best is not None:
            shelf.write_best(folder, BestRecord(best, "test_loss", 0.25))
        shelf.prune(folder, keep, upto=10**7)
        wanted = set(ordered[-keep:]) | ({best} if best is not None else set())
        assert set(shelf.numbers(folder)) == wanted
        assert shelf.next_number(folder) == max(ordered, default=0) + 1


def test_half_written_and_half_deleted_ones_go_but_not_the_next(tmp_path: Path) -> None:
    for name in (".000003.partial", ".000003.removed", ".000001.removed", ".000005.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / "notes.txt").write_text("mine")
    assert shelf.next_number(tmp_path) == 6
    shelf.sweep(tmp_path, upto=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".000005.partial", "notes.txt"]
    shelf.sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["3", "0000003", "00000x", ".000003.partial", "٠٠٠٠٠٣", ""])
def test_other_names_are_no_checkpoints(name: str) -> None:
    assert number_of(name) is None


def test_the_newest_is_the_one_with_the_largest_number(tmp_path: Path) -> None:
    for number in (2, 999_999, 1_000_000):
        write_whole_checkpoint(tmp_path, number)
    assert newest(tmp_path) == 1_000_000
    assert shelf.verified(tmp_path / "000002").number == 2


def test_the_best_may_be_told_when_it_is_already_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0, 1, 1)
    begin_write(writer, 1, 0, 1)
    writer.mark_best(1, "test_loss", float("nan"))
    assert writer.finish(GRACE)
    assert shelf.read_best(tmp_path) == BestRecord(1, "test_loss", None)


@pytest.mark.parametrize("early", [True, False])
def test_another_worker_may_tell_the_best(tmp_path: Path, early: bool) -> None:
    """Before the first worker has given the checkpoint its name, or after."""
    first, second = (Writer(tmp_path, rank, 2, 1) for rank in (0, 1))
    order = [0, 1] if early else [1, 0]
    begin_write(second, 1, 1, 2)
    for what in order:
        if what == 0:
            second.mark_best(1, "test_accuracy", 0.9)
            assert second.finish(GRACE)
        else:
            begin_write(first, 1, 0, 2)
            assert first.finish(GRACE)
    assert shelf.read_best(tmp_path) == BestRecord(1, "test_accuracy", 0.9)
    assert not (tmp_path / "000001" / "best.json").exists()
    for rank, writer in enumerate((first, second)):
        begin_write(writer, 2, rank, 2)
    assert first.finish(GRACE) and second.finish(GRACE)
    assert shelf.numbers(tmp_path) == [1, 2]
    assert first.problem is second.problem is None


def test_a_best_that_was_never_written_does_not_cost_the_one_before(tmp_path: Path) -> None:
    full = False

    def steps(name: str) -> None:
        if full and name == "rename folder":
            raise OSError(28, "No space left on device")

    writer = Writer(tmp_path, 0, 1, 1, steps=steps)
    for number in (1, 2, 3):
        full = number == 2
        if number < 3:
            writer.mark_best(number, "test_accuracy", number / 10)
        begin_write(writer, number, 0, 1)
        assert writer.finish(GRACE)
    assert shelf.numbers(tmp_path) == [1, 3]
    assert shelf.read_best(tmp_path) == BestRecord(1, "test_accuracy", 0.1)
    assert writer.problem == "checkpoint 2 was not written: No space left on device"


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"number": -1}', b"[" * 50_000])
def test_a_best_that_makes_no_sense_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "best.json").write_bytes(content)
    assert shelf.read_best(tmp_path) is None
    write_whole_checkpoint(tmp_path, 1)
    assert newest(tmp_path) == 1


def test_the_part_of_the_next_one_survives_the_end_of_this_one(tmp_path: Path) -> None:
    writers = [Writer(tmp_path, rank, 2, 1) for rank in range(2)]
    writers[1].write(1, private_of(1, 1))
    assert writers[1].finish(GRACE)
    writers[1].write(2, private_of(2, 1))
    assert writers[1].finish(GRACE)
    begin_write(writers[0], 1, 0, 2)
    assert writers[0].finish(GRACE)
    assert newest(tmp_path) == 1
    assert (tmp_path / partial_name(2)).is_dir()
    begin_write(writers[0], 2, 0, 2)
    assert writers[0].finish(GRACE)
    assert newest(tmp_path) == 2


def test_the_newest_with_finite_weights_is_kept_and_resumed_from(tmp_path: Path) -> None:
    for number in (1, 2, 3, 4):
        write_whole_checkpoint(tmp_path, number)
        manifest = read_manifest(tmp_path / folder_name(number))
        told = msgspec.structs.replace(manifest, finite=number < 3)
        (tmp_path / folder_name(number) / MANIFEST).write_bytes(msgspec.json.encode(told))
    shelf.prune(tmp_path, 1, upto=4)
    assert shelf.numbers(tmp_path) == [2, 4]
    path, _, remarks = shelf.newest_valid(tmp_path)
    assert path.name == folder_name(2)
    assert remarks == [f"{tmp_path.name}/000004: its weights are not finite, skipped"]
