"""Checkpoints against everything that can happen to a writer, a disk, or a file."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from checkpoint_making import (
    begin_write,
    manifest_of,
    newest,
    private_of,
    shared_of,
    write_in_process,
    write_whole_checkpoint,
)

from phalanx.core.errors import InputError
from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.checkpoint.checkpoint_manifest import MANIFEST, SHARED, partial_name
from phalanx.train.checkpoint.writer import Writer

WORKERS = 2
OLD, NEW = 3, 4  # the newest before the fault, and the one that is being written


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints of two workers, of which the first is the best."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    for number in range(1, OLD + 1):
        assert write_whole_checkpoint(folder, number, WORKERS, best=number == 1) == [None, None]
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "a-run" / "checkpoints"))


def steps_of_each_rank(prepared: Path, tmp: Path) -> list[list[str]]:
    """The names of all steps of an undisturbed write of checkpoint ``NEW``."""
    copy = Path(shutil.copytree(prepared, tmp / "rehearsal"))
    taken: list[list[str]] = [[] for _ in range(WORKERS)]
    watch = {rank: taken[rank].append for rank in range(WORKERS)}
    assert write_whole_checkpoint(copy, NEW, WORKERS, 1, best=True, steps=watch) == [None, None]
    assert shelf.numbers(copy) == [NEW]
    return taken


def leftovers(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]


def assert_goes_on(folder: Path) -> None:
    """The next start writes one more checkpoint and leaves nothing lying about."""
    number = shelf.next_number(folder)
    assert number not in shelf.numbers(folder)
    assert write_whole_checkpoint(folder, number, WORKERS, 1) == [None, None]
    assert newest(folder) == number
    assert leftovers(folder) == []


def exit_codes(folder: Path, victim: int, step: int) -> list[int | None]:
    """Write ``NEW`` with a process per rank, of which one dies at ``step``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "phalanx.train.checkpoint.writer"])
    meeting = context.Barrier(WORKERS, timeout=180)
    ranks = []
    try:
        for rank in range(WORKERS):
            dies = step if rank == victim else None
            args = (meeting, folder, NEW, rank, WORKERS, dies)
            ranks.append(context.Process(target=write_in_process, args=args, daemon=True))
            ranks[-1].start()
        for process in ranks:
            process.join(60)
        return [process.exitcode for process in ranks]
    finally:
        for process in ranks:
            process.kill()


@pytest.mark.parametrize("victim", range(WORKERS))
def test_a_writer_killed_at_any_step_leaves_the_one_before_or_the_new_one(
    victim: int, prepared: Path, tmp_path: Path
) -> None:
    steps = steps_of_each_rank(prepared, tmp_path)[victim]
    assert len(steps) >= (20 if victim == 0 else 6)
    published = steps.index("rename folder") if victim == 0 else len(steps)
    wanted = [-signal.SIGKILL if rank == victim else 0 for rank in range(WORKERS)]
    for step, name in enumerate(steps):
        copy = Path(shutil.copytree(prepared, tmp_path / f"killed-{step}" / "checkpoints"))
        assert exit_codes(copy, victim, step) == wanted, name
        assert newest(copy) == (NEW if step > published else OLD), name
        assert_goes_on(copy)


@pytest.mark.parametrize("victim", range(WORKERS))
def test_a_step_that_fails_is_a_problem_and_no_exception(
    victim: int, prepared: Path, tmp_path: Path
) -> None:
    steps = steps_of_each_rank(prepared, tmp_path)[victim]
    published = steps.index("rename folder") if victim == 0 else len(steps)
    for step, name in enumerate(steps):
        copy = Path(shutil.copytree(prepared, tmp_path / f"full-{step}" / "checkpoints"))
        failing = {victim: full_at(step)}
        problems = write_whole_checkpoint(copy, NEW, WORKERS, 1, best=True, steps=failing)
        assert "No space left on device" in (problems[victim] or ""), name
        assert newest(copy) == (NEW if step > published else OLD), name
        if newest(copy) == OLD:
            best = shelf.read_best(copy)
            assert best is not None
            assert best.number == 1, name
            assert 1 in shelf.numbers(copy)
        assert_goes_on(copy)


def full_at(step: int) -> Callable[[str], None]:
    taken = 0

    def steps(_name: str) -> None:
        nonlocal taken
        taken += 1
        if taken == step + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return steps


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    point = tmp_path / "small"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(point)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


@pytest.mark.parametrize("greedy", range(WORKERS))
def test_a_full_disk_keeps_the_old_checkpoint_and_the_next_one_fits(
    greedy: int, small_disk: Path
) -> None:
    folder = small_disk / "a-run" / "checkpoints"
    assert write_whole_checkpoint(folder, 1, WORKERS) == [None, None]
    writers = [Writer(folder, rank, WORKERS, 1) for rank in range(WORKERS)]
    sizes = [1_000_000 if rank == greedy else 10 for rank in range(WORKERS)]
    shared = shared_of(2)
    writers[0].write(2, private_of(2, 0, sizes[0]), manifest_of(2, WORKERS), shared)
    writers[1].write(2, private_of(2, 1, sizes[1]))
    assert all(writer.finish(20) for writer in writers)
    assert writers[greedy].problem == "checkpoint 2 was not written: No space left on device"
    if greedy == 1:
        assert (
            writers[0].problem == "checkpoint 2 was not written: worker 1 could not write its part"
        )
    assert newest(folder) == 1
    for rank, writer in enumerate(writers):
        begin_write(writer, 3, rank, WORKERS)
    assert all(writer.finish(20) for writer in writers)
    assert newest(folder) == 3
    assert leftovers(folder) == []


def test_a_worker_that_never_delivers_is_not_waited_for_forever(folder: Path) -> None:
    writer = Writer(folder, 0, WORKERS, 1, patience=0.1)
    begin_write(writer, NEW, 0, WORKERS)
    assert writer.finish(20)
    assert (
        writer.problem == f"checkpoint {NEW} was not written: worker 1 wrote no part within 0.1 s"
    )
    assert newest(folder) == OLD
    assert leftovers(folder) == []


def test_a_worker_that_delivers_too_late_disturbs_nothing(folder: Path) -> None:
    writers = [Writer(folder, rank, WORKERS, 1, patience=0.1) for rank in range(WORKERS)]
    begin_write(writers[0], NEW, 0, WORKERS)
    assert writers[0].finish(20)
    begin_write(writers[1], NEW, 1, WORKERS)
    assert writers[1].finish(20)
    assert newest(folder) == OLD
    assert leftovers(folder) == [partial_name(NEW)]
    assert_goes_on(folder)


def test_the_part_of_an_earlier_start_is_never_mixed_in(folder: Path) -> None:
    late = Writer(folder, 1, WORKERS, 1)
    late.write(NEW, private_of(99, 1))
    assert late.finish(20)
    assert leftovers(folder) == [partial_name(NEW)]
    writer = Writer(folder, 0, WORKERS, 1, patience=0.1)
    begin_write(writer, NEW, 0, WORKERS)
    assert writer.finish(20)
    assert writer.problem is not None
    assert newest(folder) == OLD


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def link(path: Path) -> None:
    """Even to the very same bytes."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", [SHARED, "rank-1.safetensors"])
@pytest.mark.parametrize(
    ("damage", "remark"),
    [
        (flip, "is damaged (checksum)"),
        (cut, "is damaged ("),
        (Path.unlink, "is missing"),
        (link, "is not a plain file"),
        (pipe, "is not a plain file"),
    ],
)
def test_a_damaged_file_is_named_and_skipped(
    damage: Callable[[Path], None], remark: str, name: str, folder: Path
) -> None:
    damage(folder / "000003" / name)
    path, _, remarks = shelf.newest_valid(folder)
    assert path.name == "000002"
    assert len(remarks) == 1
    assert remarks[0].startswith(f"checkpoints/000003: {name} {remark}")
    assert remarks[0].endswith(", skipped")
    with pytest.raises(InputError, match=name):
        shelf.verified(folder / "000003")


def edited(**fields: object) -> Callable[[bytes], bytes]:
    def edit(old: bytes) -> bytes:
        return msgspec.json.encode({**msgspec.json.decode(old), **fields})

    return edit


def renamed(name: str) -> Callable[[bytes], bytes]:
    return lambda old: old.replace(b"rank-1.safetensors", name.encode())


@pytest.mark.parametrize(
    ("edit", "remark"),
    [
        (lambda old: b"", "manifest.json is damaged"),
        (lambda old: old[:-3], "manifest.json is damaged"),
        (lambda old: b"\xff\x00garbage", "manifest.json is damaged"),
        (lambda old: b"[" * 100_000, "manifest.json is damaged"),
        (lambda old: b'{"format": 1, "other": ' + b"[" * 100_000, "manifest.json is damaged"),
        (edited(format=2), "it has format 2"),
        (edited(number=2), "manifest.json is that of checkpoint 2"),
        (edited(workers=2**61), "manifest.json does not name the files of"),
        (edited(workers=10**40), "manifest.json is damaged"),
        (edited(workers=-1), "manifest.json is damaged"),
        (edited(workers=1), "manifest.json does not name the files of 1 workers"),
        (edited(position=2**63), "manifest.json is damaged"),
        (edited(files={}), "manifest.json does not name the files of 2 workers"),
        (renamed("../../outside"), "manifest.json does not name the files of 2 workers"),
        (renamed("/etc/passwd"), "manifest.json does not name the files of 2 workers"),
    ],
)
def test_a_manifest_without_sense_is_named_and_skipped(
    edit: Callable[[bytes], bytes], remark: str, folder: Path
) -> None:
    manifest = folder / "000003" / MANIFEST
    manifest.write_bytes(edit(manifest.read_bytes()))
    path, _, remarks = shelf.newest_valid(folder)
    assert path.name == "000002"
    assert len(remarks) == 1
    assert remarks[0].startswith(f"checkpoints/000003: {remark}")


def test_sizes_beyond_the_disk_are_not_believed(folder: Path) -> None:
    manifest = folder / "000003" / MANIFEST
    content = msgspec.json.decode(manifest.read_bytes())
    content["files"][SHARED]["bytes"] = 2**60
    manifest.write_bytes(msgspec.json.encode(content))
    path, _, remarks = shelf.newest_valid(folder)
    assert path.name == "000002"
    assert f"of {2**60} bytes" in remarks[0]


def test_all_damaged_is_said_with_each_name(folder: Path) -> None:
    for number in shelf.numbers(folder):
        flip(folder / f"{number:06d}" / SHARED)
    with pytest.raises(InputError) as caught:
        shelf.newest_valid(folder)
    assert caught.value.cause == "a-run has no checkpoint to resume from"
    for number in (1, 2, 3):
        assert f"checkpoints/00000{number}: {SHARED} is damaged (checksum)" in caught.value.remedy


def test_a_link_in_the_place_of_the_new_checkpoint_is_not_followed(
    folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    writer = Writer(folder, 0, 1, 1)
    (folder / partial_name(NEW)).symlink_to(outside)
    begin_write(writer, NEW, 0, 1)
    assert writer.finish(20)
    assert writer.problem is not None
    assert list(outside.iterdir()) == []
    assert newest(folder) == OLD
    assert_goes_on(folder)
    assert outside.is_dir()


def test_what_cannot_be_written_is_a_problem_of_the_checkpoint_only(folder: Path) -> None:
    writer = Writer(folder, 0, 1, 1)
    strange = {"x": torch.zeros(2, dtype=torch.complex32)}
    writer.write(NEW, strange, manifest_of(NEW, 1), shared_of(NEW))
    assert writer.finish(20)
    assert writer.problem == (
        f"checkpoint {NEW} was not written: a checkpoint cannot hold 'x' (torch.complex32)"
    )
    assert newest(folder) == OLD
    assert leftovers(folder) == []
