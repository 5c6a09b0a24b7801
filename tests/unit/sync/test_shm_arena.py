"""The arena between real processes: barrier, locks, and what happens when one dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from phalanx.core.errors import InputError, PeerLost
from phalanx.sync.transport import memfd
from phalanx.sync.transport.shm import ShmArena


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


def test_nothing_is_left_in_dev_shm() -> None:
    before = set(Path("/dev/shm").iterdir())
    descriptor = memfd.create(2)
    assert set(Path("/dev/shm").iterdir()) == before
    os.close(descriptor)
