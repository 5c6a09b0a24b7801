"""A direct all-reduce that begins while its numbers are still being computed.

Back-propagation computes the last layers' gradients first, and they lie at the end of the flat
buffer. So the numbers for a participant are cut into pieces, which are sent from the last to the
first, each as soon as it is ready: Li et al., "PyTorch Distributed: experiences on accelerating
data parallel training" (2020), section 3.2.3.
"""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from phalanx.core.errors import PeerLost
from phalanx.sync.collective.algorithms import direct
from phalanx.sync.collective.links import Links, raw
from phalanx.sync.collective.parts import element_starts
from phalanx.sync.connect.channel import drop_first

PAUSE = 0.002
"""Seconds between two moves; the kernel keeps what arrives meanwhile. Waking up for every few
packets instead took 8 of the 21 ms of a backward pass at 1 Gbit/s."""
CLOSE_SECONDS = 1.0
WORTHWHILE = 64 << 10
"""The least bytes of a buffer of which parts are sent early."""
Span = tuple[int, int]


class EarlySum(ABC):
    """Sums the same buffer over all participants, again and again; parts may be sent early."""

    hidden = 0.0
    """Seconds in which numbers of the last sum moved before all were final; 0 if unknown."""

    @property
    @abstractmethod
    def can_begin_early(self) -> bool:
        """Whether parts may be sent early; otherwise ``finish`` sends everything."""

    @abstractmethod
    def ready(self, low: int) -> None:
        """Say that the numbers from ``low`` on are final, and may be sent in the background.
        If a peer is lost, ``finish`` reports it."""

    def final(self) -> None:  # noqa: B027
        """Note that all numbers are final: from now on, moving them is not hidden any more."""

    @abstractmethod
    def start(self) -> None:
        """Say that all numbers are final, shortly before ``finish``; send without waiting."""

    @abstractmethod
    def finish(self, factor: float = 1.0) -> int:
        """Complete the sum and multiply it by ``factor``, which is the same for everybody; return
        the bytes that were sent."""

    @abstractmethod
    def discard(self) -> None:
        """Throw away this exchange, because numbers changed after they were sent. Collective."""

    @abstractmethod
    def close(self) -> None:
        """End the threads; the sum is not used any more."""


class SenderThread:
    """A thread that keeps bytes moving while its owner computes.

    ``move`` moves what it can without waiting, and says whether there may be more to move; it is
    never called while the owner holds ``lock``."""

    def __init__(self, move: Callable[[], bool]) -> None:
        self.lock = threading.Lock()
        self._move = move
        self._wanted = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start moving, until ``rest`` is called or nothing is left."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="phalanx-sender", daemon=True)
            self._thread.start()
        self._wanted.set()

    def rest(self) -> None:
        """Stop moving; the caller can be sure of it once it holds ``lock``."""
        self._wanted.clear()

    def close(self) -> None:
        """End the thread, so that its buffers and connections can be used for something else."""
        self._over = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if self._over:
                return
            with self.lock:
                # If ``_wanted`` is not set, do not clear it: the owner may be setting it just now.
                if self._wanted.is_set() and not self._goes_on():
                    self._wanted.clear()
            if self._wanted.is_set():
                time.sleep(PAUSE)

    def _goes_on(self) -> bool:
        try:
            return self._move()
        except PeerLost:
            return False  # the owner meets the same error in ``finish``


class AheadSum(EarlySum):
    """Sums ``flat`` over one connection to each participant.

    ``cuts`` are the places where ``flat`` may be cut, the same for all participants.
    """

    def __init__(self, links: Links, flat: Tensor, cuts: Sequence[int]) -> None:
        self._links, self._flat, self._others = links, flat, direct.others(links)
        self._sender, self._counted = SenderThread(self._move), links.sent
        spans = spans_of(flat, links.size)
        low, high = spans[links.rank]
        self._parts = [flat[a:b] for a, b in spans]
        self._rooms = {peer: torch.empty(high - low, dtype=flat.dtype) for peer in self._others}
        self._outgoing = {
            peer: [(a, raw(flat[a:b])) for a, b in pieces_of(spans[peer], cuts)]
            for peer in self._others
        }
        self._incoming = {
            peer: [raw(room[a - low : b - low]) for a, b in pieces_of((low, high), cuts)]
            for peer, room in self._rooms.items()
        }
        self._begin()

    def _begin(self) -> None:
        self._held = {peer: list(pieces) for peer, pieces in self._outgoing.items()}
        """Pieces that are not ready yet."""
        self._going: dict[int, list[memoryview]] = {peer: [] for peer in self._others}
        self._coming = {peer: list(views) for peer, views in self._incoming.items()}
        self._hides = False
        self._beside = self._looked = 0.0

    @property
    def can_begin_early(self) -> bool:
        return self._links.goes_ahead

    def ready(self, low: int) -> None:
        with suppress(PeerLost):
            if not self._hides:
                self._looked, self._hides = time.monotonic(), True
            if self._let_go(low):
                self._sender.begin()

    def final(self) -> None:
        with self._sender.lock:
            self._note_time(moved=any(self._going.values()))
            self._hides = False

    def _note_time(self, *, moved: bool) -> None:
        if self._hides:
            now = time.monotonic()
            self._beside += now - self._looked if moved else 0.0
            self._looked = now

    def start(self) -> None:
        self._let_go(0)

    def _let_go(self, low: int) -> bool:
        """Release the pieces from ``low`` on, and move; return whether some is left to move."""
        with self._sender.lock:
            self._release(low)
            return self._move()

    def _release(self, low: int) -> None:
        for peer, held in self._held.items():
            while held and held[0][0] >= low:
                self._going[peer].append(held.pop(0)[1])

    def _move(self) -> bool:
        """Move what the kernel takes at once; return whether some is left to move."""
        left = moved = False
        for peer in self._others:
            going, coming = self._going[peer], self._coming[peer]
            if going:
                moved = True
                drop_first(going, self._links.push(peer, going))
            while coming and (count := self._links.pull(peer, coming[0])):
                moved = True
                drop_first(coming, count)
            left = left or bool(going) or bool(coming)
        self._note_time(moved=moved)
        return left and self._links.goes_ahead

    def finish(self, factor: float = 1.0) -> int:
        links, own = self._links, self._parts[self._links.rank]
        self._exchange_rest()
        if links.size == 2:
            own.add_(self._rooms[1 - links.rank])
        else:
            direct.add_in_order(own, self._rooms, links.rank)
        if factor != 1.0:
            own.mul_(factor)
        if links.size > 2:
            direct.all_gather(links, self._parts)
        self.hidden = self._beside
        self._begin()
        sent, self._counted = links.sent - self._counted, links.sent
        return sent

    def discard(self) -> None:
        self._exchange_rest()
        self._begin()

    def _exchange_rest(self) -> None:
        """Send and receive all that remains, and wait for it."""
        self._sender.rest()
        with self._sender.lock:
            self._release(0)
            self._links.swap(list(self._going.items()), list(self._coming.items()))

    def close(self) -> None:
        self._sender.close()


def spans_of(flat: Tensor, size: int) -> list[Span]:
    """Return the span that each participant receives: its part, or everything if they are two."""
    if size == 2:
        return [(0, flat.numel())] * 2
    return list(itertools.pairwise(element_starts(flat, size)))


def pieces_of(span: Span, cuts: Sequence[int]) -> list[Span]:
    """Cut ``span`` at ``cuts``; return the pieces, the last one first."""
    low, high = span
    inner = [low, *sorted(cut for cut in cuts if low < cut < high), high]
    return [(a, b) for a, b in itertools.pairwise(inner) if a < b][::-1]
