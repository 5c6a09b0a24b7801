"""Threads that take turns in scripted time: no deadlock, and the same again from the same seed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import LIMIT, scripted

from phalanx.sync.arena.deterministic_scheduler import DeadlockError
from phalanx.sync.arena.memory_arena import ThreadArena

Event = tuple[int, str, float]


@dataclass(frozen=True)
class Round:
    """What each rank does alone, and how all of them end it together."""

    naps: list[float]
    locks: list[int]
    end: str
    size: int


NAPS = st.lists(st.sampled_from([0.0, 1e-6, 1e-3, 0.25]), max_size=3)
ROUNDS = st.builds(
    Round,
    naps=NAPS,
    locks=st.lists(st.integers(0, 2), max_size=3),
    end=st.sampled_from(["barrier", "subsets", "await", "nothing"]),
    size=st.integers(1, 8),
)


def _play(workers: int, rounds: list[Round], seed: int) -> list[Event]:
    """Everything that happens, in order."""
    trace: list[Event] = []
    done = [0] * workers
    inside: dict[int, int] = {}

    def work(rank: int, arena: ThreadArena) -> None:
        def tell(what: str) -> None:
            trace.append((rank, what, arena.pace.now()))

        for number, each in enumerate(rounds):
            for nap in each.naps:
                arena.sleep(nap * (rank + 1))
                tell("slept")
            for index in each.locks:
                with arena.lock(index):
                    assert index not in inside
                    inside[index] = rank
                    arena.sleep(1e-5)
                    tell(f"lock {index}")
                    assert inside.pop(index) == rank
            _end_together(arena, each, done, number)
            tell(each.end)

    scripted(workers, work, seed)
    return trace


def _end_together(arena: ThreadArena, each: Round, done: list[int], number: int) -> None:
    rank, workers = arena.rank, arena.workers
    done[rank] = number + 1
    if each.end == "barrier":
        arena.barrier()
        assert min(done) == number + 1
    elif each.end == "subsets":
        first = rank // each.size * each.size
        members = range(first, min(workers, first + each.size))
        arena.subset_barrier(members)()
        assert all(done[member] >= number + 1 for member in members)
    arena.wake()
    if each.end == "await":
        arena.await_(lambda: min(done) >= number)
        assert min(done) >= number


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.lists(ROUNDS, min_size=1, max_size=6), st.integers(0, 1 << 32))
def test_whatever_ranks_do_they_all_end_and_it_repeats_exactly(
    workers: int, rounds: list[Round], seed: int
) -> None:
    first = _play(workers, rounds, seed)
    steps = sum(1 + len(each.naps) + len(each.locks) for each in rounds)
    assert len(first) == workers * steps
    assert _play(workers, rounds, seed) == first
    for rank in range(workers):
        times = [at for who, _, at in first if who == rank]
        assert times == sorted(times)


def test_a_deadlock_is_told_to_everybody_with_what_each_waits_for() -> None:
    told: dict[int, str] = {}

    def work(rank: int, arena: ThreadArena) -> None:
        arena.barrier()
        try:
            if rank == 0:
                arena.barrier()
            elif rank == 1:
                arena.await_(lambda: False)
            elif rank == 2:
                arena.subset_barrier([2, 3])()
        except DeadlockError as error:
            told[rank] = error.cause

    scripted(4, work)
    assert set(told) == {0, 1, 2} and len(set(told.values())) == 1
    assert "rank 0 in a barrier, rank 1 waits to be admitted" in told[0]
    assert "rank 2 in a group of ranks 2, 3, rank 3 has ended" in told[0]


def test_locks_taken_crosswise_are_a_deadlock() -> None:
    def work(rank: int, arena: ThreadArena) -> None:
        with arena.lock(rank):
            arena.barrier()
            with arena.lock(1 - rank):
                pass

    with pytest.raises(DeadlockError, match=r"rank 0 waits for lock 1, rank 1 waits for lock 0"):
        scripted(2, work)


def test_a_thread_without_turns_is_excluded_by_locks_and_excludes() -> None:
    count = [0]

    def work(rank: int, arena: ThreadArena) -> None:
        def beside() -> None:
            for _ in range(300):
                with arena.lock(3):
                    before = count[0]
                    time.sleep(0)
                    count[0] = before + 1

        helper = threading.Thread(target=beside)
        helper.start()
        for _ in range(300):
            with arena.lock(3):
                before = count[0]
                time.sleep(0)
                count[0] = before + 1
        helper.join(LIMIT)
        arena.barrier()

    scripted(3, work)
    assert count == [1800]
