"""The arena between real processes: barrier, locks, and what happens when one dies."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from phalanx.agent.system import stat_fields
from phalanx.core.errors import InputError, PeerLost
from phalanx.sync.arena import memfd
from phalanx.sync.arena import shm_arena as shm
from phalanx.sync.arena.shm_arena import ShmArena


def _processes(workers: int, work: Callable[[ShmArena], None]) -> list[int]:
    """Exit codes of ``work`` in ``workers`` forked processes; 3 stands for an exception."""
    descriptor = memfd.create(workers)
    pids = []
    for rank in range(workers):
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                signal.alarm(30)
                work(ShmArena(descriptor, rank, workers))
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(descriptor)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_what_was_written_before_the_barrier_is_read_after_it(workers: int) -> None:
    def work(arena: ShmArena) -> None:
        cells = arena.region("cells", workers, torch.int64)
        for number in range(1, 300):
            cells[arena.rank] = number
            arena.barrier()
            assert cells.tolist() == [number] * workers
            arena.barrier()

    assert _processes(workers, work) == [0] * workers


def test_a_lock_excludes_the_others() -> None:
    def work(arena: ShmArena) -> None:
        count = arena.region("count", 1, torch.int64).numpy()
        for _ in range(400):
            with arena.lock(7):
                count[0] = count[0] + 1
        arena.barrier()
        assert count[0] == 400 * arena.workers

    assert _processes(3, work) == [0, 0, 0]


def test_a_lock_of_a_dead_worker_is_noticed() -> None:
    def work(arena: ShmArena) -> None:
        if arena.rank == 0:
            held = arena.lock(5)  # kept, or it would be given back with the generator
            held.__enter__()
            arena.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
            del held
        arena.barrier()
        with pytest.raises(PeerLost, match="died"), arena.lock(5):
            pass

    assert _processes(2, work) == [-signal.SIGKILL, 0]


def test_whoever_waits_for_a_worker_that_left_is_told() -> None:
    def work(arena: ShmArena) -> None:
        left = arena.region("left", 1, torch.uint8).numpy()
        if arena.rank == 0:
            left[0] = 1
            return
        with pytest.raises(PeerLost, match="has left"):
            arena.barrier(lambda: bool(left[0]))

    assert _processes(2, work) == [0, 0]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_subset_barrier_waits_for_its_members_alone(size: int) -> None:
    def work(arena: ShmArena) -> None:
        cells = arena.region("cells", 5, torch.int64)
        first = arena.rank // size * size
        members = list(range(first, min(5, first + size)))
        barrier = arena.subset_barrier(members[::-1])
        for number in range(1, 100 + 50 * (arena.rank // size)):  # subsets go on for unlike times
            cells[arena.rank] = number
            barrier()
            assert [int(cells[member]) for member in members] == [number] * len(members)
            barrier()
        arena.barrier()

    assert _processes(5, work) == [0] * 5


def test_subsets_change_their_members_without_a_common_barrier() -> None:
    def work(arena: ShmArena) -> None:
        cells = arena.region("cells", 4, torch.int64)
        pairs = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)]
        mine = [pair for pair in pairs if arena.rank in pair]
        for number in range(1, 300):
            pair = mine[number % 3]
            cells[arena.rank] = number
            arena.subset_barrier(pair)()
            assert min(int(cells[member]) for member in pair) >= number
            arena.subset_barrier(pair)()

    assert _processes(4, work) == [0] * 4


@pytest.mark.parametrize("slack", [0, 2])
def test_no_wake_is_missed(slack: int) -> None:
    """Everybody waits for the slowest, and nobody looks up from its sleep unless woken."""

    def work(arena: ShmArena) -> None:
        shm.SLICE_SECONDS = 1000.0
        done = arena.region("done", arena.workers, torch.int64).numpy()
        for number in range(1, 2000):
            done[arena.rank] = number
            arena.wake()
            arena.await_(lambda least=number - slack: bool(done.min() >= least))
            assert done.min() >= number - slack

    assert _processes(3, work) == [0, 0, 0]


def test_what_was_written_under_a_lock_is_there_for_whoever_is_woken() -> None:
    def work(arena: ShmArena) -> None:
        values = arena.region("values", 4096, torch.float32)
        turn = arena.region("turn", 1, torch.int64).numpy()

        def my_turn() -> bool:
            with arena.lock(9):
                return bool(turn[0] % arena.workers == arena.rank)

        for number in range(300):
            arena.await_(my_turn)
            assert bool((values == number * arena.workers + arena.rank).all())
            values.add_(1.0)
            with arena.lock(9):
                turn[0] += 1
            arena.wake()

    assert _processes(3, work) == [0, 0, 0]


def test_whoever_has_what_it_awaits_does_not_mind_that_the_giver_left() -> None:
    def work(arena: ShmArena) -> None:
        given = arena.region("given", 1, torch.int64).numpy()
        left = arena.region("left", 1, torch.uint8).numpy()
        if arena.rank == 0:
            given[0] = 1
            left[0] = 1
            return
        arena.await_(lambda: bool(given[0]), lambda: bool(left[0]))

    assert _processes(3, work) == [0, 0, 0]


def test_different_models_are_refused() -> None:
    def work(arena: ShmArena) -> None:
        with pytest.raises(InputError, match="different models"):
            arena.region("parameters", 10 + arena.rank, torch.float32)

    assert _processes(2, work) == [0, 0]


def test_memory_is_zero_again_after_a_rewind() -> None:
    def work(arena: ShmArena) -> None:
        first = arena.region("first", 100, torch.float32)
        first.fill_(5.0)
        arena.rewind()
        second = arena.region("second", 50, torch.float64)
        assert not second.any()
        arena.barrier()

    assert _processes(2, work) == [0, 0]


@pytest.mark.parametrize("what", ["semaphore", "lock"])
def test_a_clock_that_is_set_back_prolongs_no_wait(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait until a moment of the wall clock would end an hour later, and nobody would look."""
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 3600)

    def work(arena: ShmArena) -> None:
        looks = iter(range(3))

        def look() -> None:
            if next(looks, None) is None:
                os._exit(0)

        if arena.rank == 0:
            arena.watch = look
        held = arena.lock(0)
        if what == "lock" and arena.rank == 1:
            held.acquire()
        arena.barrier()
        if arena.rank == 1:
            signal.pause()
        held.acquire() if what == "lock" else arena.barrier()

    assert _first_of(work) == 0


def _first_of(work: Callable[[ShmArena], None]) -> int:
    """How the first of two processes ends; the other one is ended after it."""
    descriptor, pids = memfd.create(2), []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            with contextlib.suppress(BaseException):
                work(ShmArena(descriptor, rank, 2))
            os._exit(3)
        pids.append(pid)
    os.close(descriptor)
    ended = os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1])
    os.kill(pids[1], signal.SIGKILL)
    os.waitpid(pids[1], 0)
    return ended


def test_a_worker_that_dies_while_others_await_it_is_noticed() -> None:
    def work(arena: ShmArena) -> None:
        pids = arena.region("pids", arena.workers, torch.int64).numpy()
        pids[arena.rank] = os.getpid()
        arena.barrier()
        if arena.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLost, match="has left"):
            arena.await_(lambda: False, lambda: _is_dead(int(pids[0])))

    assert _processes(3, work) == [-signal.SIGKILL, 0, 0]


def _is_dead(pid: int) -> bool:
    """A zombie counts: its parent reaps the processes one after another."""
    fields = stat_fields(pid)
    return not fields or fields[0] in "ZX"


def _place(descriptor: int) -> bytes:
    return f"{os.getpid()} {descriptor}".encode()


@pytest.mark.parametrize("kind", ["file", "deleted file", "file in memory", "pipe", "small", "run"])
def test_only_memory_of_this_run_is_opened(tmp_path: Path, kind: str) -> None:
    proof = bytes(range(32))
    if kind == "pipe":
        descriptor, _ = os.pipe()
    elif kind == "small":
        descriptor = os.memfd_create("phalanx")
        os.pwrite(descriptor, proof, 0)
    elif kind == "run":
        descriptor = memfd.create(2, bytes(32))  # another one's
    else:
        folder = Path("/dev/shm") if kind == "file in memory" else tmp_path
        path = folder / f"phalanx-test-{os.getpid()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(path, memfd.CONTROL_BYTES)
        os.pwrite(descriptor, proof, 0)
        if kind == "deleted file":
            path.unlink()
    try:
        with pytest.raises(PeerLost, match=r"invalid memory descriptor|did not share"):
            memfd.opened(_place(descriptor), proof)
    finally:
        Path(f"/dev/shm/phalanx-test-{os.getpid()}").unlink(missing_ok=True)
        os.close(descriptor)


def test_the_memory_of_another_process_is_the_same() -> None:
    made = memfd.create(2, proof := bytes(range(32)))
    child = os.fork()
    if child == 0:
        os.close(made)
        found = memfd.opened(f"{os.getppid()} {made}".encode(), proof)
        os.pwrite(found, b"here", memfd.CONTROL_BYTES - 8)
        os._exit(os.get_inheritable(found))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.pread(made, 4, memfd.CONTROL_BYTES - 8) == b"here"
    os.close(made)
    for place in (_place(made), b"me", b"-1 -1"):
        with pytest.raises(PeerLost, match="did not share"):
            memfd.opened(place, proof)
