"""An arena for workers that are threads of one process: for debuggers, tests and exact repeats.

The threads take turns (``deterministic_scheduler``), so a run repeats bit for bit from its seed,
asynchronous ones included. A thread that is no worker's (one that reads ahead, say) may take locks,
sleep, and wake others; it does so in real time, without the scheduler, so results that depend on it
may vary.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from phalanx.core.errors import InputError, PeerLost
from phalanx.sync.arena.arena import LEFT, Lock, LostWorker, SubsetBarrier
from phalanx.sync.arena.deterministic_scheduler import SLICE_SECONDS, DeterministicScheduler, Gone

PAUSE_SECONDS = 0.001
LOCK_SECONDS = 1e-5
"""Mean seconds for taking a lock. They are exponentially distributed, so that any worker may be
next, however long it has tried; that is how seeds make a difference."""


def compute_with(threads: int) -> int:
    """Let torch compute with so many threads; returns how many it used before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    return before


class Hub:
    """The state that the threads of one run share; :meth:`arena` gives each rank its view."""

    def __init__(self, workers: int, seed: int = 0, lock_seconds: float | None = None) -> None:
        self.workers = workers
        self._lock_seconds = LOCK_SECONDS if lock_seconds is None else lock_seconds
        self.scheduler = DeterministicScheduler(workers, seed)
        self._arrived: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        self._regions: dict[int, torch.Tensor] = {}
        self._locks: dict[int, ThreadLock] = {}
        self.busy_until: defaultdict[tuple[str, int], float] = defaultdict(float)
        """Virtual times until which links and servers are busy."""
        self.lost: dict[int, str] = {}
        """Workers that were lost while the others went on, each with the time in words."""
        self.kept: dict[object, object] = {}
        """Values that one thread has read, so that the others need not read them again."""
        self._arenas = [ThreadArena(self, rank, workers) for rank in range(workers)]

    def arena(self, rank: int) -> ThreadArena:
        return self._arenas[rank]

    @contextmanager
    def turn(self, rank: int) -> Iterator[None]:
        """Let the calling thread live as ``rank``; it begins when all ranks have come.

        No other rank runs except while this one waits inside the arena. If it fails, the others
        give up as soon as they ask the arena for anything.
        """
        self.scheduler.enter(rank)
        try:
            yield
        except BaseException:
            self.abort()
            raise
        finally:
            self.scheduler.leave(rank)

    @property
    def aborted(self) -> bool:
        return self.scheduler.aborted

    def abort(self) -> None:
        """Make all threads give up, because one of them has failed."""
        self.scheduler.abort()

    def meet(
        self, rank: int, members: tuple[int, ...], words: str, gone: Gone | None = None
    ) -> None:
        """Wait for ``members``; all go on at the time of the last arrival."""
        self.scheduler.check()
        if self.scheduler.me() != rank:
            raise RuntimeError(f"only rank {rank} itself can wait here, inside Hub.turn({rank})")
        arrived = self._arrived[members]
        present = [member for member in members if member not in self.lost]
        if len(arrived) + 1 < len(present):
            self.scheduler.block(rank, arrived, words, gone)
            return
        latest = max(map(self.scheduler.time, present))  # not always that of the last to come
        self.scheduler.charge(rank, latest - self.scheduler.time(rank))
        self._go_on(arrived)
        self.scheduler.sleep(rank, 0.0)

    def _go_on(self, arrived: list[int]) -> None:
        others = sorted(arrived)
        arrived.clear()
        self.scheduler.resume(others)

    def lose(self, rank: int, words: str) -> None:
        """End the calling thread; return only if the others cannot go on without it."""
        lost = LostWorker(rank, f"worker {rank}", "simulated")
        others = [arena for arena in self._arenas if arena.rank not in (rank, *self.lost)]
        # The first worker makes plans and files for all.
        if rank == 0 or not all(arena.survives(lost) for arena in others):
            return
        self.lost[rank] = words
        for members, arrived in self._arrived.items():
            if arrived and len(arrived) == sum(member not in self.lost for member in members):
                self._go_on(arrived)
        self.scheduler.wake()
        self.scheduler.lose(rank)

    def region(self, number: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        if number not in self._regions:
            self._regions[number] = torch.zeros(count, dtype=dtype)
        found = self._regions[number]
        if found.numel() != count or found.dtype != dtype:
            raise InputError("the workers built different models", "Build the same model on each.")
        return found

    def forget(self) -> None:
        self._regions.clear()

    def lock(self, index: int) -> ThreadLock:
        if index not in self._locks:
            self._locks.setdefault(index, ThreadLock(self.scheduler, index, self._lock_seconds))
        return self._locks[index]


@dataclass
class ThreadLock(Lock):
    """A lock: ranks wait for it in virtual time, threads without turns in real time."""

    scheduler: DeterministicScheduler
    index: int
    seconds: float
    """Mean seconds for taking the lock."""
    _taken: threading.Lock = field(default_factory=threading.Lock)
    _holder: int | None = None
    _waiting: list[int] = field(default_factory=list)

    def acquire(self, blocking: bool = True) -> bool:
        self.scheduler.check()
        rank = self.scheduler.me()
        if rank is None:
            return self._acquire_for_real(blocking)
        self.scheduler.sleep(rank, -math.log1p(-self.scheduler.chance()) * self.seconds)
        while not self._taken.acquire(blocking=False):
            if not blocking:
                return False
            if self._holder is None:  # a thread without turns has the lock; it needs no turn
                self._acquire_for_real(True)
                break
            self.scheduler.block(rank, self._waiting, f"waits for lock {self.index}")
        self._holder = rank
        return True

    def _acquire_for_real(self, blocking: bool) -> bool:
        if not blocking:
            return self._taken.acquire(blocking=False)
        while not self._taken.acquire(timeout=SLICE_SECONDS):
            self.scheduler.check()
        return True

    def release(self) -> None:
        self._holder = None
        self._taken.release()
        # A thread without turns resumes no rank: the one resumed before it takes the lock next.
        if self._waiting and self.scheduler.me() is not None and not self.scheduler.aborted:
            chosen = int(self.scheduler.chance() * len(self._waiting))
            self.scheduler.resume([self._waiting.pop(chosen)])


@dataclass(frozen=True)
class VirtualClock:
    """The virtual time of one rank."""

    scheduler: DeterministicScheduler
    rank: int

    def now(self) -> float:
        return self.scheduler.time(self.rank)


class ThreadArena:
    """One rank's view of a :class:`Hub`."""

    scripted = True
    hosts = None
    in_step = False

    def __init__(self, hub: Hub, rank: int, workers: int) -> None:
        self.host, self.lost = self, hub.lost.keys()
        self.survives: Callable[[LostWorker], bool] = lambda _lost: False
        self.hub, self.rank, self.workers = hub, rank, workers
        self.pace = VirtualClock(hub.scheduler, rank)
        self._scheduler, self._everyone = hub.scheduler, tuple(range(workers))
        self._asked = 0

    def region(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        self._asked += 1
        return self.hub.region(self._asked, count, dtype)

    def rewind(self) -> None:
        self._asked = 0
        self.barrier()
        if self.rank == 0:
            self.hub.forget()
        self.barrier()

    def watch_losses(self, survives: Callable[[LostWorker], bool]) -> None:
        """Watch for a worker that a simulation loses; a thread that fails ends all of them."""
        self.survives = survives

    def barrier(self, gone: Gone | None = None) -> None:
        self.hub.meet(self.rank, self._everyone, "in a barrier", gone)

    def subset_barrier(self, members: Sequence[int]) -> SubsetBarrier:
        if self.rank not in members:
            raise ValueError(f"rank {self.rank} is not in the group {list(members)}")
        words = f"in a group of ranks {', '.join(map(str, sorted(members)))}"
        return partial(self.hub.meet, self.rank, tuple(sorted(members)), words)

    def lock(self, index: int) -> ThreadLock:
        self._scheduler.check()
        return self.hub.lock(index)

    def await_(self, ready: Callable[[], bool], gone: Gone | None = None) -> None:
        self._scheduler.check()
        while not ready():
            if self._mine():
                self._scheduler.await_(self.rank, gone)
            elif gone is not None and gone():
                raise PeerLost(*LEFT)
            else:
                self.pause()

    def wake(self) -> None:
        self._scheduler.wake()

    def sleep(self, seconds: float) -> None:
        if self._mine():
            self._scheduler.sleep(self.rank, seconds)
        else:
            self._scheduler.check()
            time.sleep(seconds)

    def charge(self, seconds: float) -> None:
        """Like ``sleep``, but without giving way: see the scheduler's ``charge``."""
        self._scheduler.charge(self.rank, seconds)

    def pause(self) -> None:
        self.sleep(PAUSE_SECONDS)

    def _mine(self) -> bool:
        """Whether the calling thread is this rank's own."""
        return self._scheduler.me() == self.rank
