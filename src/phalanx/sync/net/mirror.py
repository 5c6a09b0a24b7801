"""The arena of a worker whose companions are on other machines too.

Control memory is small (clocks, claims, intents, figures) and lies in each worker's own process;
the home forwards what changed when somebody releases something that others acquire (see
``home``). What is large never lies here: gradients and parameters go from host to host.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from phalanx.core.errors import InputError, MachineLost, PeerLost
from phalanx.sync.clock import MonotonicClock
from phalanx.sync.net import home_messages as m
from phalanx.sync.net.channel import Channel
from phalanx.sync.transport.arena import LEFT, Arena

if TYPE_CHECKING:
    from phalanx.sync.net.hosts import Hosts

SLICE_SECONDS = 0.1
ALIGN = 64
HOT_BYTES = 32 << 20  # address space; only what is used costs memory
COLD_BYTES = 256 << 20
LARGE = 1 << 16
"""Regions from this size on are compared at barriers of all only."""

Gone = Callable[[], bool]
Bytes = NDArray[np.uint8]
Places = NDArray[np.uint64]
NOTHING: tuple[int, bytes, bytes] = (0, b"", b"")


class Block:
    """Memory, and what the home knows of it."""

    def __init__(self, base: int, capacity: int) -> None:
        self.base, self._capacity, self.end = base, capacity, 0
        self._memory: Bytes = np.zeros(capacity, np.uint8)
        self._known: Bytes = np.zeros(capacity, np.uint8)

    def allocate(self, size: int) -> memoryview:
        start = self.end
        if start + size > self._capacity:
            raise InputError(
                "the workers have more buffers than their control memory holds",
                "Use buffers='first' in phalanx.join, or fewer workers.",
            )
        self.end = -(-(start + size) // ALIGN) * ALIGN
        view: memoryview = self._memory[start : start + size].data
        return view

    def clear(self) -> None:
        self._memory[: self.end] = 0
        self._known[: self.end] = 0
        self.end = 0

    def changes(self) -> tuple[int, bytes, bytes]:
        """(runs, their places, their bytes) since this was asked last."""
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


@dataclass
class MirrorLock:
    """A lock that the home keeps, and frees when its holder dies."""

    arena: Mirror
    index: int

    def acquire(self, blocking: bool = True) -> bool:
        return self.arena.acquire(self.index, blocking)

    def release(self) -> None:
        self.arena.release(self.index)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True)
class MirrorCircle:
    arena: Mirror
    members: tuple[int, ...]

    def wait(self, gone: Gone | None = None) -> None:
        self.arena.meet(self.members, gone)


class Mirror:
    """One worker's view of control memory. ``channel`` leads to the home."""

    scripted = False

    def __init__(self, channel: Channel, rank: int, workers: int) -> None:
        self.rank, self.workers = rank, workers
        self.host: Arena = self
        self.hosts: Hosts | None = None
        self.pace = MonotonicClock()
        self.lost: set[int] = set()
        """Workers that are gone, and without whom this one goes on."""
        self.survives: Callable[[m.Lost], bool] = lambda lost: False
        """Asked when a process is gone: whether this worker goes on without it."""
        self.training = False
        """Whether others count on this worker: it has memory of a training that is not over."""
        self._channel = channel
        self._turn = threading.RLock()
        self._seq = 0
        self._hot, self._cold = Block(0, HOT_BYTES), Block(1 << 40, COLD_BYTES)
        self._locks: dict[int, MirrorLock] = {}

    # -- memory ------------------------------------------------------------------------------

    def region(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        digest = hashlib.sha256(f"{name} {count} {dtype}".encode()).digest()
        with self._turn:
            self.training = True
            answer = self._wait(self._send(m.Region(self._next(), digest)))
        if answer.refused:
            raise InputError(
                answer.refused, "Every worker has to build the same model, with the same optimizer."
            )
        if count == 0:
            return torch.empty(0, dtype=dtype)
        size = count * dtype.itemsize
        block = self._cold if size >= LARGE else self._hot
        return torch.frombuffer(block.allocate(size), dtype=dtype, count=count)

    def rewind(self) -> None:
        self._meet((), None, forget=True)
        if self.hosts is not None:
            self.hosts.forget()
        self._hot.clear()
        self._cold.clear()
        self._meet((), None, forget=True)
        self.training = False

    # -- barriers and locks ------------------------------------------------------------------

    def barrier(self, gone: Gone | None = None) -> None:
        self.meet((), gone)

    def circle(self, members: Sequence[int]) -> MirrorCircle:
        if self.rank not in members:
            raise ValueError(f"rank {self.rank} is not in the circle of {list(members)}")
        everyone = len(members) == self.workers
        return MirrorCircle(self, () if everyone else tuple(sorted(members)))

    def meet(self, members: tuple[int, ...], gone: Gone | None) -> None:
        self._meet(members, gone)

    def _meet(self, members: tuple[int, ...], gone: Gone | None, *, forget: bool = False) -> None:
        with self._turn:
            runs, *changes = NOTHING if forget else self._changes(everything=not members)
            seq = self._send(m.Meet(self._next(), runs, list(members), forget), *changes)
            self._wait(seq, gone)

    def lock(self, index: int) -> MirrorLock:
        return self._locks.setdefault(index, MirrorLock(self, index))

    def acquire(self, index: int, blocking: bool) -> bool:
        with self._turn:
            runs, *changes = self._changes()
            seq = self._send(m.Acquire(self._next(), runs, index, blocking), *changes)
            return self._wait(seq).granted

    def release(self, index: int) -> None:
        with self._turn:
            runs, *changes = self._changes()
            self._send(m.Release(runs, index), *changes)

    # -- waiting and waking ------------------------------------------------------------------

    def await_(self, ready: Callable[[], bool], gone: Gone | None = None) -> None:
        while not ready():
            with self._turn:  # not for longer than a slice: another thread may have to speak
                runs, *changes = self._changes()
                self._send(m.Await(self._next(), runs), *changes)
                self._wait_a_slice(self._seq)
            if gone is not None and gone() and not ready():
                raise PeerLost(*LEFT)

    def wake(self) -> None:
        with self._turn:
            runs, *changes = self._changes()
            self._send(m.Wake(runs), *changes)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pause(self) -> None:
        time.sleep(0.001)

    # -- values, for whoever has to find somebody -----------------------------------------------

    def put(self, key: str, value: bytes) -> None:
        with self._turn:
            self._send(m.Put(key, value))

    def get(self, key: str) -> bytes:
        """Waits until somebody has put it."""
        with self._turn:
            return self._wait(self._send(m.Get(self._next(), key))).value

    def add(self, key: str, amount: int) -> int:
        with self._turn:
            return int(self._wait(self._send(m.Add(self._next(), key, amount))).value)

    # -- words to the home and back ------------------------------------------------------------

    def close(self, *, in_good_order: bool) -> None:
        if in_good_order:
            with self._turn:
                self._send(m.Bye())
        self._channel.close()

    def check(self) -> None:
        """Hear whether somebody is gone, without waiting."""
        with self._turn:
            while self._channel.poll(0.0):
                self._receive()

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _changes(self, *, everything: bool = False) -> tuple[int, bytes, bytes]:
        hot = self._hot.changes()
        cold = self._cold.changes() if everything and self._cold.end else NOTHING
        if cold is NOTHING:
            return hot
        return hot[0] + cold[0], hot[1] + cold[1], hot[2] + cold[2]

    def _send(self, request: m.Request, *changes: bytes) -> int:
        self._channel.send(m.encode(request), *changes)
        return self._seq

    def _wait(self, seq: int, gone: Gone | None = None) -> m.Answer:
        asked = seq
        while True:
            while gone is not None and not self._channel.poll(SLICE_SECONDS):
                if gone():
                    raise PeerLost(*LEFT)
                if asked == seq:  # what ``gone`` looks at is only as new as what was heard
                    asked = self._send(m.Peek(self._next()))
            answer = self._receive()
            if answer is not None and answer.seq == seq:
                return answer
            if answer is not None and answer.seq == asked:
                if gone is not None and gone():
                    raise PeerLost(*LEFT)
                asked = seq

    def _wait_a_slice(self, seq: int) -> None:
        if self._channel.poll(SLICE_SECONDS):
            self._receive()
            return
        # The answer may be on its way by now: it is applied when it comes, and not waited for.
        self._wait(self._send(m.Peek(self._next())))

    def _receive(self) -> m.Answer | None:
        header, size = self._channel.receive()
        reply = m.reply_decoder.decode(header)
        if isinstance(reply, m.Lost):
            self._hear_of(reply)
            return None
        if not isinstance(reply, m.Answer):
            return None
        self._apply(reply.runs, size)
        return reply

    def _apply(self, runs: int, size: int) -> None:
        if not size:
            return
        heads, data = bytearray(16 * runs), bytearray(size - 16 * runs)
        self._channel.receive_into(memoryview(heads), memoryview(data))
        places = np.frombuffer(heads, np.uint64).reshape(runs, 2).tolist()
        values, at = np.frombuffer(data, np.uint8), 0
        for start, length in places:
            block = self._cold if start >= self._cold.base else self._hot
            block.apply(start, values[at : at + length])
            at += length

    def _hear_of(self, lost: m.Lost) -> None:
        if not lost.serves and self.survives(lost):
            self.lost.add(lost.rank)
            return
        raise MachineLost(
            f"{_words(lost)} has {'ended' if lost.ended else 'gone'}",
            "Every worker has to train as often as the others."
            if lost.ended
            else "Look at its log; its machine may be down, or cut off from the others.",
        )


def _words(lost: m.Lost) -> str:
    who = "the parameter server" if lost.serves else f"worker {lost.rank}"
    return f"{who} on {lost.machine} ({lost.address})"
