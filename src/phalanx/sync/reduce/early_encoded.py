"""Sums of encoded gradients that begin while the rest of these is still being computed.

As in a step without it, every host gets every other's message, decodes it, and adds them up in the
order of the hosts. Pieces of a message go ahead where they always have the same size, so that
nothing has to be said of them. What a host knows with its step only goes with the last piece: that
it has nothing to give, or something that is not finite. Its pieces then do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from phalanx.sync.codec.codec import Payload, Piecewise
from phalanx.sync.collective.algorithms.ahead import EarlyExchange, EarlySum, Span, pieces_of
from phalanx.sync.collective.links import raw
from phalanx.sync.state.gradient_values import are_sound

NOTHING, ENCODED, NOT_FINITE = range(3)
"""What a host gives."""


class EncodedSum(EarlySum):
    """Sums ``flat``; ``sender`` is the codec at work, and ``gives`` whether there is something to
    give. Its state moves on with a sum, and not with what is thrown away."""

    def __init__(
        self,
        exchange: EarlyExchange,
        flat: Tensor,
        scratch: Tensor,
        cuts: Sequence[int],
        decoder: Piecewise,
        sender: Callable[[], Piecewise],
        gives: Callable[[], bool],
    ) -> None:
        self._exchange, self._flat, self._scratch = exchange, flat, scratch.zero_()
        self._decoder, self._sender, self._gives = decoder, sender, gives
        self._pieces = _pieces(flat.numel(), cuts, decoder.grain)
        sizes = [decoder.encode_piece(self._scratch, *piece) for piece in self._pieces]
        self._rooms = {peer: [_room_for(one) for one in sizes] for peer in exchange.others}
        self._statuses = {peer: torch.empty(1, dtype=torch.uint8) for peer in exchange.others}
        self._status = torch.empty(1, dtype=torch.uint8)
        self._begin()

    def _begin(self) -> None:
        self._made: list[Payload] = []
        self._whole = False
        """Whether all of it was given, and the status."""
        self._exchange.begin(
            {peer: [*_views(self._rooms[peer]), raw(s)] for peer, s in self._statuses.items()}
        )

    @property
    def can_begin_early(self) -> bool:
        return self._exchange.goes_ahead

    def ready(self, low: int) -> None:
        if made := self._encode(low):
            self._exchange.give_early({peer: list(_views(made)) for peer in self._rooms})

    def _encode(self, low: int) -> list[Payload]:
        """The pieces from ``low`` on that were not made yet; the gradients stay what they are."""
        rest, encode = self._pieces[len(self._made) :], self._sender().encode_piece
        made = [encode(self._flat, *piece) for piece in rest if piece[0] >= low]
        self._made += made
        return made

    def start(self) -> None:
        self._exchange.give(self._rest())

    def _rest(self) -> dict[int, list[memoryview]]:
        """What was not given yet, to everybody."""
        views: list[memoryview] = []
        if not self._whole:
            self._whole = True
            views += _views(self._encode(0))
            self._status.fill_(self._status_now())
            views.append(raw(self._status))
        return dict.fromkeys(self._rooms, views)

    def _status_now(self) -> int:
        if not are_sound([self._flat]):
            return NOT_FINITE  # a codec may hide it
        return ENCODED if self._gives() else NOTHING

    def finish(self, factor: float = 1.0) -> int:
        self._exchange.finish(self._rest())
        rank, messages = self._exchange.rank, self._rooms | {self._exchange.rank: self._made}
        statuses = [int(self._statuses.get(peer, self._status)) for peer in range(len(messages))]
        for n, (low, high) in enumerate(self._pieces):
            total = self._flat[low:high].zero_()
            # In the order of the hosts: all get the same bits.
            for peer, status in enumerate(statuses):
                if status == NOT_FINITE:
                    total.add_(torch.nan)
                elif status == ENCODED:
                    self._decoder.decode_piece(messages[peer][n], self._scratch, low, high)
                    total.add_(self._scratch[low:high])
            if factor != 1.0:
                total.mul_(factor)
        if statuses[rank] == ENCODED:
            self._sender().advance(self._flat.numel())
        self._begin()
        return self._exchange.count()

    def discard(self) -> None:
        self._exchange.finish(self._rest())
        self._begin()

    def close(self) -> None:
        self._exchange.close()


def _pieces(size: int, cuts: Sequence[int], grain: int) -> list[Span]:
    """The last one first. A piece begins at its cut or a little after it, where a codec can."""
    return pieces_of((0, size), sorted({-(-cut // grain) * grain for cut in cuts}))


def _room_for(payload: Payload) -> Payload:
    return Payload(tuple(torch.empty_like(tensor) for tensor in payload.tensors))


def _views(payloads: Sequence[Payload]) -> Iterator[memoryview]:
    return (raw(tensor) for payload in payloads for tensor in payload.tensors)
