"""Threads that take turns in scripted time: no deadlock, and the same again from the same seed."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import LIMIT, as_threads, scripted

from phalanx.core.errors import PeerLost, RunStopped
from phalanx.sync.arena.deterministic_scheduler import DeadlockError
from phalanx.sync.arena.memory_arena import Hub, ThreadArena

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
        arena.subset_barrier(members).wait()
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
                arena.subset_barrier([2, 3]).wait()
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


@pytest.mark.parametrize("way", ["barrier", "barrier", "await"])
def test_whoever_waits_in_vain_is_told_when_the_other_has_left(way: str) -> None:
    left: list[int] = []

    def work(rank: int, arena: ThreadArena) -> str:
        if rank == 0:
            arena.sleep(1.0)
            left.append(rank)
            return "left"
        try:
            _wait(arena, way, lambda: bool(left))
        except PeerLost as error:
            return error.cause
        return "went on"

    assert scripted(2, work) == [
        "left",
        "another worker has left the training while this one was waiting for it",
    ]


def _wait(arena: ThreadArena, way: str, gone: Callable[[], bool]) -> None:
    if way == "barrier":
        arena.barrier(gone)
    elif way == "barrier":
        arena.subset_barrier([0, 1]).wait(gone)
    else:
        arena.await_(lambda: False, gone)


@pytest.mark.parametrize("way", ["barrier", "barrier", "await", "lock", "sleep"])
def test_an_abort_frees_everybody(way: str) -> None:
    hub, told = Hub(3), []

    def work(rank: int) -> None:
        arena = hub.arena(rank)
        if rank == 0:
            arena.lock(1).acquire()
        arena.barrier()
        if rank == 0:
            arena.sleep(1.0)
            hub.abort()
            return
        with pytest.raises(PeerLost):
            _wait_for_ever(arena, way)
        told.append(rank)

    as_threads(hub, work)
    assert sorted(told) == [1, 2]


def _wait_for_ever(arena: ThreadArena, way: str) -> None:
    if way == "lock":
        arena.lock(1).acquire()
    while way == "sleep":
        arena.pause()
    if way == "barrier":
        arena.subset_barrier([0, 1, 2]).wait()
    _wait(arena, way, lambda: False)


def test_a_rank_that_fails_takes_the_others_with_it() -> None:
    hub, told = Hub(2), []

    def live(rank: int) -> None:
        try:
            with hub.turn(rank):
                if rank == 0:
                    raise KeyError("lost")
                hub.arena(rank).barrier()
        except (KeyError, PeerLost) as error:
            told.append(type(error))

    threads = [threading.Thread(target=live, args=(r,), daemon=True) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(told, key=str) == [KeyError, PeerLost]


def test_a_thread_that_waits_can_be_interrupted() -> None:
    hub, told, waiting = Hub(2), [], threading.Event()
    interrupted = threading.Event()

    def work(rank: int) -> None:
        if rank == 0:
            told.append(threading.get_ident())
            with pytest.raises(RunStopped):
                hub.arena(rank).barrier()
            interrupted.set()
            return
        while not told:
            hub.arena(rank).pause()
        waiting.set()
        assert interrupted.wait(LIMIT)  # in real time, so rank 0 never gets its turn

    starter = threading.Thread(target=lambda: as_threads(hub, work), daemon=True)
    starter.start()
    assert waiting.wait(LIMIT)
    thread = ctypes.c_ulong(told[0])
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(RunStopped))
    starter.join(LIMIT)
    assert interrupted.is_set() and not starter.is_alive()


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
