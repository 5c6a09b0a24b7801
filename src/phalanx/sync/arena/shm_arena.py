"""An arena for workers that are processes of one host, over an inherited memfd."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from phalanx.core.errors import InputError, PeerLost
from phalanx.sync.arena import memfd
from phalanx.sync.arena.arena import LEFT, LostWorker, SubsetBarrier
from phalanx.sync.arena.clock import MonotonicClock

SPIN_SECONDS = 50e-6  # a longer time would take processors and quota from other workers
SLICE_SECONDS = 0.1  # seconds after which a sleeping worker checks that its peers are there
_EBUSY, _ETIMEDOUT, _EOWNERDEAD = 16, 110, 130


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_CLOCK_MONOTONIC = 1


def _timed(library: ctypes.CDLL, by_clock: str, otherwise: str) -> Callable[[ctypes.c_void_p], int]:
    """Return a function that waits for a slice of time, by a clock that cannot be set.

    A C library without one (glibc before 2.30) uses the wall clock: setting that back prolongs the
    wait.
    """
    wait = getattr(library, by_clock, None)
    if wait is not None:
        return lambda cell: int(wait(cell, _CLOCK_MONOTONIC, _slice_from(time.monotonic())))
    by_wall = getattr(library, otherwise)
    return lambda cell: int(by_wall(cell, _slice_from(time.time())))


def _slice_from(now: float) -> Any:
    at = now + SLICE_SECONDS
    return ctypes.byref(_Timespec(int(at), int((at % 1) * 1e9)))


class _Lock:
    """A robust mutex: the kernel hands it on when its holder dies, and says so."""

    def __init__(self, address: int, look: Callable[[], None]) -> None:
        self._look = look
        self._cell = ctypes.c_void_p(address)
        quick, slow = ctypes.PyDLL(None), ctypes.CDLL(None)
        self._try, self._unlock = quick.pthread_mutex_trylock, quick.pthread_mutex_unlock
        self._wait = _timed(slow, "pthread_mutex_clocklock", "pthread_mutex_timedlock")

    def acquire(self, blocking: bool = True) -> bool:
        code = self._try(self._cell)
        if code == _EBUSY and not blocking:
            return False
        while code in (_EBUSY, _ETIMEDOUT):
            code = self._wait(self._cell)
            if code == _ETIMEDOUT:
                self._look()
        if code == _EOWNERDEAD:
            self._unlock(self._cell)
            raise PeerLost("a worker died while it was updating the parameters")
        if code != 0:
            raise PeerLost(f"a lock of the shared memory failed: {os.strerror(code)}")
        return True

    def release(self) -> None:
        self._unlock(self._cell)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self._unlock(self._cell)


Gone = Callable[[], bool]
Round = tuple[ctypes.c_void_p, ctypes.c_void_p]


class ShmArena:
    """Has regions behind the control block, a dissemination barrier, and robust mutexes.

    The barrier is that of Hensgen, Finkel and Manber, "Two algorithms for barrier
    synchronization" (1988): log2(n) rounds, in each of which a worker posts one semaphore and
    waits for one, so that a worker only ever touches its partners' cache lines.
    """

    scripted = False
    hosts = None
    in_step = False
    lost = ()

    def __init__(self, descriptor: int, rank: int, workers: int) -> None:
        self.host = self
        self.watch: Callable[[], None] | None = None
        """Called by a worker that waits long; raises an error if another host is lost, which this
        memory does not show."""
        self.rank, self.workers = rank, workers
        self.pace = MonotonicClock()
        self._descriptor = descriptor
        self._end = memfd.CONTROL_BYTES
        self._control = mmap.mmap(descriptor, memfd.CONTROL_BYTES)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._control))
        # Calls that cannot block keep the interpreter lock, the ones that can give it up.
        self._quick, self._slow = ctypes.PyDLL(None), ctypes.CDLL(None)
        self._sem_wait = _timed(self._slow, "sem_clockwait", "sem_timedwait")
        self._spin = SPIN_SECONDS if workers <= (os.cpu_count() or 1) else 0.0
        self._partners = list(self._rounds())
        self._locks = [
            _Lock(self._base + memfd.lock_cell(i), self._look) for i in range(memfd.LOCKS)
        ]
        self._flags = slice(memfd.FLAGS_AT, memfd.FLAGS_AT + workers)
        self._nobody = bytes(workers)
        self._wake_lock = _Lock(self._base + memfd.lock_cell(memfd.WAKE_LOCK), self._look)
        self._wakes = [ctypes.c_void_p(self._base + memfd.wake_cell(r)) for r in range(workers)]
        self._agreement = self._map(workers * 32)
        self._start, self._used_before = self._end, False

    def _rounds(self) -> Iterator[Round]:
        """Yield the partners in each round of the barrier: whom to signal, and for whom to wait."""
        barrier_round, distance = 0, 1
        while distance < self.workers:
            partner = (self.rank + distance) % self.workers
            yield (
                self._cell(memfd.barrier_cell(partner, barrier_round)),
                self._cell(memfd.barrier_cell(self.rank, barrier_round)),
            )
            barrier_round, distance = barrier_round + 1, distance * 2

    def _cell(self, offset: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._base + offset)

    def region(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        self._agree(f"{name} {count} {dtype}")
        if count == 0:
            return torch.empty(0, dtype=dtype)
        found = torch.frombuffer(self._map(count * dtype.itemsize), dtype=dtype, count=count)
        if self._used_before:
            if self.rank == 0:
                found.zero_()
            self.barrier()
        return found

    def rewind(self) -> None:
        self.barrier()
        self._end, self._used_before = self._start, True

    def _map(self, size: int) -> mmap.mmap:
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.rank == 0:  # only one worker may change the size: shrinking would pull pages away
            size = os.fstat(self._descriptor).st_size
            os.ftruncate(self._descriptor, max(size, self._end + pages))
        self.barrier()
        block = mmap.mmap(self._descriptor, pages, offset=self._end)
        self._end += pages
        return block

    def _agree(self, what: str) -> None:
        """Check that all workers ask for the same memory; otherwise their models differ."""
        start = self.rank * 32
        self._agreement[start : start + 32] = hashlib.sha256(what.encode()).digest()
        self.barrier()
        first = self._agreement[:32]
        same = all(self._agreement[r * 32 : r * 32 + 32] == first for r in range(self.workers))
        self.barrier()
        if not same:
            raise InputError(
                "the workers built different models",
                "Every worker has to build the same model, with the same optimizer.",
            )

    def barrier(self, gone: Gone | None = None) -> None:
        self.disseminate(self._partners, gone)

    def subset_barrier(self, members: Sequence[int]) -> SubsetBarrier:
        ordered = sorted(members)
        at, rounds, distance = ordered.index(self.rank), [], 1
        while distance < len(ordered):
            after, before = ordered[(at + distance) % len(ordered)], ordered[at - distance]
            post = self._cell(memfd.pair_cell(self.rank, after))
            rounds.append((post, self._cell(memfd.pair_cell(before, self.rank))))
            distance *= 2
        return partial(self.disseminate, rounds)

    def disseminate(self, rounds: Sequence[Round], gone: Gone | None = None) -> None:
        for post, wait in rounds:
            self._quick.sem_post(post)
            self._wait(wait, gone)

    def _wait(self, cell: ctypes.c_void_p, gone: Gone | None) -> None:
        if self._quick.sem_trywait(cell) == 0:
            return
        give_up = time.perf_counter() + self._spin
        while time.perf_counter() < give_up:
            if self._quick.sem_trywait(cell) == 0:
                return
        while not self._slept(cell):
            self._look()
            if gone is not None and gone():
                raise PeerLost(*LEFT)

    def _look(self) -> None:
        if self.watch is not None:
            self.watch()

    def _slept(self, cell: ctypes.c_void_p) -> bool:
        """Sleep for a slice of time; return whether ``cell`` was posted."""
        return self._sem_wait(cell) == 0

    def watch_losses(self, survives: Callable[[LostWorker], bool]) -> None:
        """Does nothing: workers that share memory all end together."""

    def lock(self, index: int) -> _Lock:
        return self._locks[index]

    def await_(self, ready: Callable[[], bool], gone: Gone | None = None) -> None:
        if not self._soon(ready):
            self._sleep_until(ready, gone)
        # From here on, writes from before a ``wake`` that took this lock are visible.
        with self._wake_lock:
            pass

    def _soon(self, ready: Callable[[], bool]) -> bool:
        if ready():
            return True
        give_up = time.perf_counter() + self._spin
        while time.perf_counter() < give_up:
            if ready():
                return True
        return False

    def _sleep_until(self, ready: Callable[[], bool], gone: Gone | None) -> None:
        """Sleep until ``ready()``. The lock orders the waker and us, so that no wake is missed.

        If the waker takes the lock after us, it sees our flag and posts. If it took the lock
        before, its writes come before our look at ``ready``. A post that comes too late only makes
        the next wait look once more.
        """
        flag = memfd.FLAGS_AT + self.rank
        while True:
            with self._wake_lock:
                self._control[flag] = 1
            if ready():
                break
            self._slept(self._wakes[self.rank])
            self._look()
            if gone is not None and gone() and not ready():
                raise PeerLost(*LEFT)
        self._control[flag] = 0

    def wake(self) -> None:
        with self._wake_lock:
            waiting = self._control[self._flags]
            if waiting == self._nobody:
                return
            self._control[self._flags] = self._nobody
        for cell, waits in zip(self._wakes, waiting, strict=True):
            if waits:
                self._quick.sem_post(cell)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pause(self) -> None:
        time.sleep(0.001)
