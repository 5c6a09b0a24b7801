"""A direct all-reduce over several connections to each participant, each with two threads.

One connection of TCP carries 2 GB/s each way however many processors there are, four carry 6 (two
processes of one machine, 360 MB); NCCL opens several sockets between two machines for the same
reason. The threads need processors that the training leaves idle: this is for workers on GPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from phalanx.core.background import BackgroundThread
from phalanx.sync.collective.algorithms import direct
from phalanx.sync.collective.algorithms.ahead import (
    CLOSE_SECONDS,
    EarlySum,
    Span,
    pieces_of,
    spans_of,
)
from phalanx.sync.collective.links import raw
from phalanx.sync.connect.channel import Channel

STRIPES = 4
WORTHWHILE = 32 << 20
"""The least bytes of a sum for which several connections pay."""
LARGEST = 4 << 20
"""Most bytes of a piece: few enough to be in the processor's cache when it is added."""


class Stripe:
    """One connection, with a thread for each direction."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._out, self._in = (BackgroundThread(f"phalanx-stripe-{way}") for way in ("out", "in"))

    def send(self, flat: Tensor) -> Future[None]:
        return self._out.submit(self._channel.send_raw, [raw(flat)])

    def receive(self, flat: Tensor) -> Future[None]:
        return self._in.submit(self._channel.receive_raw, raw(flat))

    def close(self) -> None:
        """Stop moving data, so that the memory that was sent or filled can be used again."""
        self._channel.close()
        for thread in (self._out, self._in):
            thread.close(CLOSE_SECONDS)


class StripedSum(EarlySum):
    """Sums ``flat`` over ``stripes``: connections from participant ``rank`` to each other one."""

    def __init__(
        self, rank: int, stripes: Mapping[int, Sequence[Stripe]], flat: Tensor, cuts: Sequence[int]
    ) -> None:
        self._rank, self._stripes, self._flat = rank, stripes, flat
        self._size, self._sent = len(stripes) + 1, 0
        most = LARGEST // flat.element_size()
        spans = spans_of(flat, self._size)
        pieces = [_chop(pieces_of(span, cuts), most) for span in spans]
        self._mine, (self._first, end) = pieces[rank], spans[rank]
        """The pieces that this participant sums."""
        self._theirs = {peer: _ways(pieces[peer], stripes[peer]) for peer in stripes}
        self._rooms = {peer: torch.empty(end - self._first, dtype=flat.dtype) for peer in stripes}
        self._begin()

    def _begin(self) -> None:
        self._gone: dict[int, list[Future[None]]] = {peer: [] for peer in self._stripes}
        """The sends of pieces that are ready, by participant."""
        self._came = {
            peer: [
                stripe.receive(self._room(peer, piece)) for piece, stripe in _ways(self._mine, own)
            ]
            for peer, own in self._stripes.items()
        }

    def _room(self, peer: int, piece: Span) -> Tensor:
        return self._rooms[peer][piece[0] - self._first : piece[1] - self._first]

    @property
    def can_begin_early(self) -> bool:
        return True

    def ready(self, low: int) -> None:
        for peer, gone in self._gone.items():
            for piece, stripe in itertools.islice(self._theirs[peer], len(gone), None):
                if piece[0] < low:
                    break
                gone.append(self._send(piece, stripe))

    def _send(self, piece: Span, stripe: Stripe) -> Future[None]:
        part = self._flat[slice(*piece)]
        self._sent += part.numel() * part.element_size()
        return stripe.send(part)

    def start(self) -> None:
        self.ready(0)

    def finish(self, factor: float = 1.0) -> int:
        self.ready(0)
        under_way = self._gather() if self._size > 2 else []
        for n, piece in enumerate(self._mine):
            self._add(n, piece, factor)
            if self._size > 2:
                under_way += [
                    self._send(piece, own[n % len(own)]) for own in self._stripes.values()
                ]
        _wait(under_way)
        sent, self._sent = self._sent, 0
        self._begin()
        return sent

    def _gather(self) -> list[Future[None]]:
        """Begin to receive the pieces that the others sum.

        A sum overwrites this participant's own numbers: it contains them, so they were sent.
        """
        return [
            stripe.receive(self._flat[slice(*piece)])
            for ways in self._theirs.values()
            for piece, stripe in ways
        ]

    def _add(self, number: int, piece: Span, factor: float) -> None:
        for came in self._came.values():
            came[number].result()
        own = self._flat[slice(*piece)]
        if self._size == 2:
            (peer,) = self._stripes
            self._gone[peer][number].result()  # the sum overwrites the memory that this sends
            own.add_(self._room(peer, piece))
        else:
            arrived = {peer: self._room(peer, piece) for peer in self._stripes}
            direct.add_in_order(own, arrived, self._rank)
        if factor != 1.0:
            own.mul_(factor)

    def discard(self) -> None:
        self.ready(0)
        for futures in (*self._came.values(), *self._gone.values()):
            _wait(futures)
        self._begin()

    def close(self) -> None:
        for stripes in self._stripes.values():
            for stripe in stripes:
                stripe.close()


def _ways(pieces: Sequence[Span], stripes: Sequence[Stripe]) -> list[tuple[Span, Stripe]]:
    """Return each piece with the stripe that carries it, in either direction."""
    return list(zip(pieces, itertools.cycle(stripes), strict=False))


def _wait(futures: Iterable[Future[None]]) -> None:
    for future in futures:
        future.result()


def _chop(pieces: Iterable[Span], most: int) -> list[Span]:
    """Cut pieces that are longer than ``most``; return all, the last one first."""
    return [(max(low, end - most), end) for low, high in pieces for end in range(high, low, -most)]
