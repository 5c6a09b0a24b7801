"""A worker's requests to the coordinator and their answers, also from several threads at once.

Only one of the waiting threads reads; it stores the answers to the other threads' requests. Waiting
never keeps another thread from sending: the answer may depend on what that thread releases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from phalanx.core.errors import InputError, PeerLost
from phalanx.sync.arena.arena import LEFT
from phalanx.sync.arena.remote import coordinator_messages as m
from phalanx.sync.connect.channel import Channel

SLICE_SECONDS = 0.1
OTHERS_SECONDS = 1.0
Changes = tuple[int, bytes, bytes]
"""Changes of memory: how many runs of bytes changed, where they are, and the bytes."""
NOTHING: Changes = (0, b"", b"")
Gone = Callable[[], bool]


class CoordinatorClient:
    """One worker's requests. ``take`` returns the worker's changes of memory since the last call,
    ``apply`` writes the changes of others, ``hear_of`` is called for each process that is lost."""

    def __init__(
        self,
        channel: Channel,
        take: Callable[[bool], Changes],
        apply: Callable[[int, bytearray, bytearray], None],
        hear_of: Callable[[m.Lost], None],
    ) -> None:
        self._channel, self._take, self._apply, self._hear_of = channel, take, apply, hear_of
        self._turn = threading.Condition()
        self._seq, self._reading = 0, False
        self._open: set[int] = set()
        self._answers: dict[int, m.CoordinatorAnswer] = {}
        self._problem: PeerLost | None = None
        self.released = False
        """Whether changes were sent to the coordinator since all workers last met there."""

    def say(self, request: m.Request, *, bare: bool = False) -> None:
        """Send a message that has no answer; ``bare``: without changes of memory."""
        self._send(request, everything=False, bare=bare, answered=False)

    def ask(
        self,
        request: m.Request,
        *,
        everything: bool = False,
        bare: bool = False,
        changes: Changes | None = None,
        gone: Gone | None = None,
    ) -> m.CoordinatorAnswer:
        """Send ``request`` and wait for its answer, or raise an error if ``gone()`` becomes true.

        ``changes``, if given, are sent instead of newly taken ones.
        """
        seq, looked = self._send(request, everything, bare, taken=changes), time.monotonic()
        while True:
            answer = self._hear(seq, None if gone is None else SLICE_SECONDS)
            if answer is not None and answer.refused:
                raise InputError(
                    answer.refused,
                    "Every worker has to build the same model, with the same optimizer.",
                )
            if answer is not None:
                return answer
            if gone is not None and time.monotonic() - looked >= SLICE_SECONDS:
                looked = time.monotonic()
                if gone():
                    raise PeerLost(*LEFT)
                self.say(m.Peek(), bare=True)  # so that ``gone`` sees the newest values

    def ask_for_a_slice(self, request: m.Request) -> None:
        """Wait for an answer up to ``SLICE_SECONDS``; without one, fetch all changes so far."""
        seq = self._send(request, everything=False, bare=False)
        if self._hear(seq, SLICE_SECONDS) is None:
            with self._turn:
                self._open.discard(seq)
            self.ask(m.Peek(), bare=True)

    def check(self) -> None:
        """Read the messages that have arrived, without waiting, to learn of lost processes."""
        with self._turn:
            if self._problem is not None:
                raise self._problem
            if self._reading:
                return
            self._reading = True
        with self._reader():
            while self._channel.poll(0.0):
                self._read()

    def close(self) -> None:
        self._channel.close()

    def _send(
        self,
        request: m.Request,
        everything: bool,
        bare: bool,
        *,
        answered: bool = True,
        taken: Changes | None = None,
    ) -> int:
        with self._turn:
            self._seq += 1
            if answered:
                self._open.add(self._seq)
            runs, *changes = taken or (NOTHING if bare else self._take(everything))
            self.released |= runs > 0
            numbered = msgspec.structs.replace(request, seq=self._seq, runs=runs)
            self._channel.send(m.encode(numbered), *changes)
            return self._seq

    def _hear(self, seq: int, seconds: float | None) -> m.CoordinatorAnswer | None:
        """Read one message, or let another thread do so; return the answer to ``seq``, if any."""
        with self._turn:
            if seq in self._answers:
                return self._answers.pop(seq)
            if self._problem is not None:
                raise self._problem
            if self._reading:
                self._turn.wait(seconds or OTHERS_SECONDS)
                return self._answers.pop(seq, None)
            self._reading = True
        with self._reader():
            if seconds is None or self._channel.poll(seconds):
                self._read()
        return self._answers.pop(seq, None)

    @contextmanager
    def _reader(self) -> Iterator[None]:
        """End the calling thread's turn to read afterwards; record a lost peer for all threads."""
        try:
            yield
        except PeerLost as problem:
            self._problem = problem
            raise
        finally:
            with self._turn:
                self._reading = False
                self._turn.notify_all()

    def _read(self) -> None:
        header, size = self._channel.receive()
        try:
            reply = m.reply_decoder.decode(header)
        except msgspec.MsgspecError:
            raise self._channel.lost("it sent an unexpected message") from None
        if isinstance(reply, m.Lost):
            self._hear_of(reply)
        if not isinstance(reply, m.CoordinatorAnswer):
            return
        places = bytearray(m.RUN_BYTES * reply.runs)
        values = bytearray(max(0, size - len(places)))
        self._channel.receive_into(memoryview(places), memoryview(values))
        with self._turn:
            self._apply(reply.runs, places, values)
            if reply.seq in self._open:
                self._open.discard(reply.seq)
                self._answers[reply.seq] = reply
