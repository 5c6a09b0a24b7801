"""The arena of a worker in a training on several machines.

Control memory (clocks, claims, intents, figures) is small, and each worker's process has a copy;
the coordinator forwards changes when a worker releases something that others acquire (see
``coordinator``). Gradients and parameters are too large for it: hosts exchange them directly.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from phalanx.core import stopping
from phalanx.core.errors import InputError, MachineLost, PeerLost
from phalanx.sync.arena.arena import LEFT, Arena, Hosts, Lock, LostWorker, SubsetBarrier
from phalanx.sync.arena.clock import Clock, MonotonicClock, ShiftedClock
from phalanx.sync.arena.remote import coordinator_messages as m
from phalanx.sync.arena.remote.coordinator_client import NOTHING, Changes, CoordinatorClient, Gone
from phalanx.sync.arena.remote.direct_barrier import MOST_BYTES, DirectBarrier
from phalanx.sync.connect.channel import Channel

ALIGN = 64
Bytes = NDArray[np.uint8]


class MemoryBlock:
    """Memory from address ``base`` on, and a copy of the values that the coordinator knows."""

    def __init__(self, base: int, capacity: int) -> None:
        self.base, self._capacity, self.end = base, capacity, 0
        self._memory: Bytes = np.zeros(capacity, np.uint8)  # untouched pages cost no memory
        self._known: Bytes = np.zeros(capacity, np.uint8)

    def allocate(self, size: int) -> memoryview:
        start = self.end
        if start + size > self._capacity:
            raise InputError(
                "the model's buffers do not fit into the memory that machines share",
                "Use buffers='first' in phalanx.join, or fewer workers.",
            )
        self.end = -(-(start + size) // ALIGN) * ALIGN
        view: memoryview = self._memory[start : start + size].data
        return view

    def clear(self) -> None:
        self._memory[: self.end] = 0
        self._known[: self.end] = 0
        self.end = 0

    def changes(self) -> Changes:
        """Return (runs, their places, their bytes) that changed since the last call."""
        now = self._memory[: self.end].copy()  # another thread may write meanwhile
        at = np.flatnonzero(now != self._known[: self.end])
        if not len(at):
            return NOTHING
        breaks = np.flatnonzero(np.diff(at) != 1) + 1
        starts = at[np.concatenate(([0], breaks))]
        ends = at[np.concatenate((breaks - 1, [len(at) - 1]))] + 1
        places = np.empty((len(starts), 2), np.uint64)
        places[:, 0] = starts + self.base
        places[:, 1] = ends - starts
        values = now[at]
        self._known[at] = values
        return len(starts), places.tobytes(), values.tobytes()

    def apply(self, start: int, values: Bytes) -> None:
        at = slice(start - self.base, start - self.base + len(values))
        self._memory[at] = values
        self._known[at] = values


def joined(first: Changes, second: Changes) -> Changes:
    if second is NOTHING:
        return first
    return first[0] + second[0], first[1] + second[1], first[2] + second[2]


HOT_BYTES, COLD_BYTES = 32 << 20, 256 << 20
QUESTIONS = 8
LARGE = 1 << 16
COLD = ("buffers",)
"""Regions that, from ``LARGE`` bytes on, are compared only at barriers of all workers: a worker
writes a row of its own, and reads the others' rows after such a barrier."""


@dataclass
class RemoteLock(Lock):
    """A lock that the coordinator keeps, and frees when its holder dies."""

    arena: RemoteArena
    index: int

    def acquire(self, blocking: bool = True) -> bool:
        return self.arena.acquire(self.index, blocking)

    def release(self) -> None:
        self.arena.release(self.index)


class RemoteArena:
    """One worker's view of control memory. ``channel`` leads to the coordinator."""

    scripted = False

    def __init__(self, channel: Channel, rank: int, workers: int) -> None:
        self.rank, self.workers = rank, workers
        self.host: Arena = self
        self.hosts: Hosts | None = None
        self.pace = MonotonicClock()
        self.clock: Clock = self.pace
        """The clock for the times of events, the same on all hosts."""
        self.lost: set[int] = set()
        """The ranks of lost workers without which this worker goes on."""
        self._survives: Callable[[LostWorker], bool] = lambda lost: False
        self.training = False
        """Whether others rely on this worker: it has memory of a training that is not over."""
        self.direct: DirectBarrier | None = None
        """The barrier of few workers without the coordinator, used while all are ``in_step``."""
        self.in_step = False
        self._client = CoordinatorClient(channel, self._changes, self._apply, self._hear_of)
        self._hot, self._cold = MemoryBlock(0, HOT_BYTES), MemoryBlock(1 << 40, COLD_BYTES)
        self._locks: dict[int, RemoteLock] = {}

    # -- memory ------------------------------------------------------------------------------

    def region(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        digest = hashlib.sha256(f"{name} {count} {dtype}".encode()).digest()
        self.training = True
        self._client.ask(m.Meet(digest=digest), bare=True)
        if count == 0:
            return torch.empty(0, dtype=dtype)
        size = count * dtype.itemsize
        block = self._cold if size >= LARGE and name in COLD else self._hot
        return torch.frombuffer(block.allocate(size), dtype=dtype, count=count)

    def rewind(self) -> None:
        self._forget()
        if self.hosts is not None:
            self.hosts.forget()
            self.host.rewind()
        self.in_step = False
        self._hot.clear()
        self._cold.clear()
        self._forget()
        self._client.released = self.training = False

    def _forget(self) -> None:
        """Meet all workers, and discard all changes from before."""
        self._client.ask(m.Meet(forget=True), bare=True)

    def _changes(self, everything: bool) -> Changes:
        cold = self._cold.changes() if everything and self._cold.end else NOTHING
        return joined(self._hot.changes(), cold)

    def _apply(self, runs: int, places: bytearray, values: bytearray) -> None:
        taken, at = np.frombuffer(values, np.uint8), 0
        for start, length in np.frombuffer(places, np.uint64).reshape(runs, 2).tolist():
            block = self._cold if start >= self._cold.base else self._hot
            block.apply(start, taken[at : at + length])
            at += length

    # -- barriers and locks ------------------------------------------------------------------

    def barrier(self, gone: Gone | None = None) -> None:
        self.meet((), gone)

    def subset_barrier(self, members: Sequence[int]) -> SubsetBarrier:
        if self.rank not in members:
            raise ValueError(f"rank {self.rank} is not in the group {list(members)}")
        everyone = len(members) == self.workers
        return partial(self.meet, () if everyone else tuple(sorted(members)))

    def meet(self, members: tuple[int, ...], gone: Gone | None = None) -> None:
        if members or self.direct is None or not self.in_step:
            self._meet_at_coordinator(members, gone)
            return
        changes = self._changes(everything=True)
        at_coordinator = self._client.released or len(changes[2]) > MOST_BYTES
        again, heard = self.direct.meet(
            changes, at_coordinator=at_coordinator, gone=lambda: self._ask(gone)
        )
        for theirs in heard:
            self._apply(*theirs)
        if again:
            self._meet_at_coordinator((), gone, changes if at_coordinator else NOTHING)

    def _ask(self, gone: Gone | None) -> None:
        """Ask the coordinator for news; raise an error if waiting for the others is in vain."""
        self._client.ask(m.Peek(), bare=True)
        if gone is not None and gone():
            raise PeerLost(*LEFT)

    def _meet_at_coordinator(
        self, members: tuple[int, ...], gone: Gone | None, changes: Changes | None = None
    ) -> None:
        meet = m.Meet(members=list(members))
        self._client.ask(meet, everything=not members, changes=changes, gone=gone)
        if not members:
            self._client.released = False

    def watch_losses(self, survives: Callable[[LostWorker], bool]) -> None:
        self._survives = survives

    def lock(self, index: int) -> RemoteLock:
        return self._locks.setdefault(index, RemoteLock(self, index))

    def acquire(self, index: int, blocking: bool) -> bool:
        return self._client.ask(m.Acquire(lock=index, blocking=blocking)).granted

    def release(self, index: int) -> None:
        self._client.say(m.Release(lock=index))

    # -- waiting and waking ------------------------------------------------------------------

    def await_(self, ready: Callable[[], bool], gone: Gone | None = None) -> None:
        while not ready():
            self._client.ask_for_a_slice(m.Await())
            if gone is not None and gone() and not ready():
                raise PeerLost(*LEFT)

    def wake(self) -> None:
        self._client.say(m.Wake())

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pause(self) -> None:
        time.sleep(0.001)

    # -- values, by which processes find each other ------------------------------------------

    def put(self, key: str, value: bytes) -> None:
        self._client.say(m.Put(key=key, value=value), bare=True)

    def get(self, key: str, gone: Gone | None = None) -> bytes:
        """Wait until a process has put this key, and return its value."""
        return self._client.ask(m.Get(key=key), bare=True, gone=gone).value

    def check(self) -> None:
        """Raise an error if a machine was lost without which this worker cannot go on."""
        self._client.check()

    # -- one clock ---------------------------------------------------------------------------

    def set_clock(self) -> None:
        """Set ``clock`` to the coordinator's time, estimated from a few questions and answers.

        Cristian, "Probabilistic clock synchronization" (1989): the quickest of several answers is
        the most exact one; its error is at most half of the time that it took.
        """
        best = (float("inf"), 0.0)
        for _ in range(QUESTIONS):
            asked = time.monotonic()
            theirs = self._client.ask(m.Peek(), bare=True).time
            took = time.monotonic() - asked
            best = min(best, (took, theirs - asked - took / 2))
        took, ahead = best
        if abs(ahead) > took:  # otherwise both clocks are the same, or close enough
            self.clock = ShiftedClock(ahead)

    # -- the end -----------------------------------------------------------------------------

    def close(self, ending: m.Ending, words: str = "") -> None:
        if self.direct is not None:
            self.direct.close()
        if ending is not m.Ending.VANISHED:
            with suppress(PeerLost):
                self._client.say(m.Bye(ending=ending, words=words[:400]), bare=True)
        self._client.close()

    def _hear_of(self, lost: m.Lost) -> None:
        if lost.ending is m.Ending.STOPPED:
            stopping.ask()  # this worker is asked to stop as well
        elif (
            not lost.serves
            and lost.ending is not m.Ending.FINISHED
            and self._survives(LostWorker(lost.rank, lost.machine, lost.address))
        ):
            self.lost.add(lost.rank)
            return
        if lost.ending is m.Ending.STOPPED:
            raise MachineLost(f"{_words(lost)} has ended: it got a stop signal", "See its log.")
        if lost.words:
            raise MachineLost(f"{_words(lost)} has ended: {lost.words}", "See its log.")
        ended = lost.ending is m.Ending.FINISHED
        raise MachineLost(
            f"{_words(lost)} {'has ended' if ended else 'is gone'}",
            "All workers must leave the loop at the same point; run.stop() ends it for all."
            if ended
            else "See its log; its machine may be down, or disconnected from the others.",
        )


def _words(lost: m.Lost) -> str:
    who = "the parameter server" if lost.serves else f"worker {lost.rank}"
    return f"{who} on {lost.machine} ({lost.address})"
