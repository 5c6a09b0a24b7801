"""Lets one worker thread run at a time; virtual times and a seed decide which one is next.

Every rank has a virtual time, which passes only when it sleeps or takes a lock. The turn goes to
the runnable rank that is earliest; a seeded generator breaks ties. The wall clock plays no part,
so a run in which threads only wait for each other through the scheduler repeats exactly.

Only the rank whose turn it is touches the state, so no lock is needed once all ranks have arrived.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from phalanx.core.errors import PeerLost, ScriptError
from phalanx.sync.arena.arena import LEFT

SLICE_SECONDS = 0.1  # real seconds after which a sleeping thread looks for an interruption
LOOK_SECONDS = 0.1  # virtual seconds after which a waiting rank checks that its peers are there

Gone = Callable[[], bool]


class DeadlockError(ScriptError):
    """No worker can go on: each waits for another."""


@dataclass
class _Slot:
    """The state of one rank. Its gate is a lock, which is released to let its thread run."""

    rank: int
    time: float = 0.0
    waits: str | None = None
    """The call that it is blocked in, in words; ``None`` while it runs or may run."""
    gone: Gone | None = None
    verdict: ScriptError | None = None
    """Why the rank will not get what it waits for."""
    came: bool = False
    left: bool = False
    gate: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        try:
            self.gate.release()
        except RuntimeError:  # it is open already: an abort opens all gates
            return


class DeterministicScheduler:
    """``enter`` and ``leave`` frame the life of a rank's thread; all else is for the
    rank whose turn it is."""

    def __init__(self, ranks: int, seed: int) -> None:
        self.aborted = False
        self._slots = [_Slot(rank) for rank in range(ranks)]
        for slot in self._slots:
            slot.gate.acquire()
        self._random = random.Random(seed)
        self._runnable: list[tuple[float, float, int]] = []  # a heap: time, tie-break, rank
        self._running = self._slots[0]
        self._look_at = LOOK_SECONDS
        self._awaiting: list[int] = []
        self._knocked = False
        self._threads: dict[int, int] = {}
        self._arriving = threading.Lock()

    def me(self) -> int | None:
        """The rank of the calling thread; ``None`` if it is no rank's."""
        return self._threads.get(threading.get_ident())

    def time(self, rank: int) -> float:
        return self._slots[rank].time

    def chance(self) -> float:
        """Return the next number of the seeded generator, in [0, 1)."""
        return self._random.random()

    def enter(self, rank: int) -> None:
        """Wait until all ranks have come and it is this one's turn."""
        slot = self._slots[rank]
        with self._arriving:
            if slot.came:
                raise RuntimeError(f"rank {rank} has had its turn")
            slot.came = True
            self._threads[threading.get_ident()] = rank
            complete = all(other.came for other in self._slots)
        if complete:
            for other in self._slots:  # by rank, because the order of arrival must not matter
                self._push(other)
            self._hand_over()
        try:
            self._wait(slot)
        except BaseException:
            self._forget()
            raise

    def leave(self, rank: int) -> None:
        """End the turns of this rank; the others go on."""
        self._slots[rank].left = True
        self._forget()
        if not self.aborted:
            self._give_up_in_vain()
            self._hand_over()

    def lose(self, rank: int) -> None:
        """Make this rank disappear without a word: its thread waits here until the run ends."""
        self.leave(rank)
        self._wait(self._slots[rank])

    def _forget(self) -> None:
        self._threads.pop(threading.get_ident(), None)

    def abort(self) -> None:
        """End the run: those that wait, and every later call, get the error that a peer is lost."""
        self.aborted = True
        for slot in self._slots:
            slot.open()

    def check(self) -> None:
        if self.aborted:
            raise PeerLost(*LEFT)

    def charge(self, rank: int, seconds: float) -> None:
        """Let virtual time pass for this rank without giving way. It is cheaper than ``sleep``, for
        a rank whose next actions do not depend on the order of the ranks."""
        self._slots[rank].time += seconds

    def sleep(self, rank: int, seconds: float) -> None:
        """Let virtual time pass, and others run meanwhile."""
        self.check()
        slot = self._slots[rank]
        slot.time += max(0.0, seconds)
        first = self._runnable[0][0] if self._runnable else self._look_at
        if slot.time < first and slot.time < self._look_at:
            return  # this rank is the next one again
        self._push(slot)
        self._switch(slot)

    def block(self, rank: int, queue: list[int], words: str, gone: Gone | None = None) -> None:
        """Wait in ``queue`` until another rank resumes this one."""
        self.check()
        slot = self._slots[rank]
        slot.waits, slot.gone = words, gone
        queue.append(rank)
        try:
            self._switch(slot)
            if slot.verdict is not None:
                raise slot.verdict
        except BaseException:
            if rank in queue:
                queue.remove(rank)
            raise
        finally:
            slot.verdict = None

    def await_(self, rank: int, gone: Gone | None) -> None:
        """Wait for the next :meth:`wake`."""
        self.block(rank, self._awaiting, "waits to be admitted", gone)

    def wake(self) -> None:
        """Resume all who await; if a thread without turns calls this, the running rank does so."""
        if self.me() is None:
            self._knocked = True
        elif self._awaiting:
            self._wake()

    def _wake(self) -> None:
        self._knocked = False
        woken = sorted(self._awaiting)
        self._awaiting.clear()
        self.resume(woken)

    def resume(self, ranks: Iterable[int]) -> None:
        """Let blocked ranks run again, from the present time of the running rank on."""
        for rank in ranks:
            slot = self._slots[rank]
            if slot.waits is None:
                slot.verdict = None  # it was about to give up, but now gets what it waited for
            else:
                self._free(slot)

    def _free(self, slot: _Slot) -> None:
        slot.waits = slot.gone = None
        slot.time = max(slot.time, self._running.time)
        self._push(slot)

    def _push(self, slot: _Slot) -> None:
        heapq.heappush(self._runnable, (slot.time, self._random.random(), slot.rank))

    def _switch(self, slot: _Slot) -> None:
        following = self._next()
        if following is slot:
            return
        if following is not None:
            following.open()
        self._wait(slot)

    def _hand_over(self) -> None:
        following = self._next()
        if following is not None:
            following.open()

    def _wait(self, slot: _Slot) -> None:
        while not slot.gate.acquire(timeout=SLICE_SECONDS) and not self.aborted:
            pass
        if self.aborted:
            raise slot.verdict or PeerLost(*LEFT)

    def _next(self) -> _Slot | None:
        """Return the rank that runs next; ``None`` when all have left."""
        if self._knocked:
            self._wake()
        if self._runnable and self._runnable[0][0] >= self._look_at:
            self._look_at = self._runnable[0][0] + LOOK_SECONDS
            self._give_up_in_vain()
        if not self._runnable:
            self._give_up_in_vain()
        if not self._runnable:
            self._untangle()
        if not self._runnable:
            return None
        self._running = self._slots[heapq.heappop(self._runnable)[2]]
        return self._running

    def _give_up_in_vain(self) -> None:
        for slot in self._slots:
            if slot.waits is not None and slot.gone is not None and slot.gone():
                slot.verdict = PeerLost(*LEFT)
                self._free(slot)

    def _untangle(self) -> None:
        """Give the waiting ranks an error, because none can run and they would wait for ever."""
        blocked = [slot for slot in self._slots if slot.waits is not None]
        if not blocked:
            return
        words = [f"rank {s.rank} {'has ended' if s.left else s.waits}" for s in self._slots]
        for slot in blocked:
            slot.verdict = DeadlockError(
                f"deadlock, every worker waits for another: {', '.join(words)}",
                "Every worker has to step, evaluate and end its epochs as often as the others.",
            )
            self._free(slot)
