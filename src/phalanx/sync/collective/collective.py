"""The collectives that a reducer uses: sums, gathers and broadcasts over any topology."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from phalanx.policies.collective_choice import MOST_DIRECT, choose
from phalanx.sync.collective.algorithms import ahead, butterfly, direct, ring, striped, tree
from phalanx.sync.collective.links import Links
from phalanx.sync.connect.channel import Channel

PACKED = 64 << 10
"""Most bytes of several tensors that are packed into one message, which saves rounds."""
LATENCY_ROUNDS = 7

ALGORITHMS: dict[str, Callable[[Links, Tensor], None]] = {
    "direct": direct.all_reduce,
    "ring": ring.all_reduce,
    "tree": tree.all_reduce,
    "butterfly": butterfly.all_reduce,
}


OpenMore = Callable[[str], Mapping[int, Channel]]
"""Opens one more connection to each other participant, under a name. Collective."""


class Collective:
    """Collectives for one participant: all participants call the same methods in the same order,
    with tensors of the same sizes."""

    def __init__(
        self,
        links: Links,
        topology: str | None = None,
        latency: float | None = None,
        open_more: OpenMore | None = None,
    ) -> None:
        self.links, self._open_more = links, open_more
        self._wanted = (topology, latency)
        self._begun: list[ahead.EarlySum] = []
        self._packs: dict[tuple[torch.dtype, int], Tensor] = {}
        self.topology(0)

    @property
    def rank(self) -> int:
        return self.links.rank

    @property
    def sent(self) -> int:
        """Bytes that this participant has sent so far."""
        return self.links.sent

    @property
    def size(self) -> int:
        return self.links.size

    def topology(self, count_bytes: int) -> str:
        """Return the algorithm for a message of ``count_bytes``."""
        topology, latency = self._wanted
        return choose(topology, self.links.size, count_bytes, latency)

    def all_reduce(self, flats: Sequence[Tensor]) -> int:
        """Sum each of ``flats`` over all participants, in place; return the bytes sent.

        Every participant ends with the same bits.
        """
        before = self.links.sent
        if self.links.size > 1:
            for dtype, alike in groupby(flats, key=lambda flat: flat.dtype):
                self._reduce_alike(dtype, list(alike))
        return self.links.sent - before

    def sum_ahead(
        self, flat: Tensor, cuts: Sequence[int], *, on_gpu: bool = False
    ) -> ahead.EarlySum | None:
        """Make an all-reduce of ``flat`` that may begin early; ``None`` if that does not pay.

        ``on_gpu``: this participant computes on a GPU, and its processors are idle. All
        participants decide alike. Afterwards only the sum may use these connections.
        """
        size = flat.numel() * flat.element_size()
        if self.links.size == 1 or size < ahead.WORTHWHILE or self.topology(size) != "direct":
            return None
        made: ahead.EarlySum
        if size >= striped.WORTHWHILE and self._all(on_gpu and self.links.goes_ahead):
            made = striped.StripedSum(self.rank, self._open_stripes(), flat, cuts)
        else:
            made = ahead.AheadSum(self.links, flat, cuts)
        self._begun.append(made)
        return made

    def _all(self, answer: bool) -> bool:
        found = self.all_gather([torch.tensor(answer and self._open_more is not None)])
        return all(bool(given) for (given,) in found)

    def _open_stripes(self) -> dict[int, list[striped.Stripe]]:
        assert self._open_more is not None
        opened = [self._open_more(f"stripe-{number}") for number in range(striped.STRIPES)]
        return {peer: [striped.Stripe(channels[peer]) for channels in opened] for peer in opened[0]}

    def all_gather(self, payload: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return all participants' ``payload``, by rank: tensors of any types and shapes.

        Many participants pass messages around a ring (Chan et al., "Collective communication:
        theory, practice, and experience", 2007), so that not all send to one at the same time.
        """
        direct = self.links.size <= MOST_DIRECT
        return (all_gather_direct if direct else all_gather_ring)(self.links, payload)

    def broadcast(self, tensors: Sequence[Tensor], root: int = 0) -> int:
        """Copy the ``tensors`` of ``root`` into those of all others; return the bytes sent."""
        before = self.links.sent
        for tensor in tensors:
            tree.broadcast(self.links, tensor.detach().view(-1), root)
        return self.links.sent - before

    def close(self) -> None:
        for begun in self._begun:
            begun.close()
        self.links.close()

    def _reduce_alike(self, dtype: torch.dtype, flats: list[Tensor]) -> None:
        total = sum(flat.numel() for flat in flats)
        if len(flats) == 1 or total * dtype.itemsize > PACKED:
            for flat in flats:
                self._reduce(flat)
            return
        pack = self._packs.setdefault((dtype, total), torch.empty(total, dtype=dtype))
        parts = pack.split([flat.numel() for flat in flats])
        torch._foreach_copy_(list(parts), flats)
        self._reduce(pack)
        torch._foreach_copy_(flats, list(parts))

    def _reduce(self, flat: Tensor) -> None:
        name = self.topology(flat.numel() * flat.element_size())
        ALGORITHMS[name](self.links, flat)


def all_gather_direct(links: Links, payload: Sequence[Tensor]) -> list[list[Tensor]]:
    others = [rank for rank in range(links.size) if rank != links.rank]
    received = links.swap_payloads(dict.fromkeys(others, payload), others) if others else {}
    return [received.get(rank, list(payload)) for rank in range(links.size)]


def all_gather_ring(links: Links, payload: Sequence[Tensor]) -> list[list[Tensor]]:
    """Gather on a ring: each passes on the payload that it received last, until all have all."""
    rank, size = links.rank, links.size
    gathered: list[list[Tensor]] = [list(payload) for _ in range(size)]
    for step in range(size - 1):
        newest = gathered[(rank - step) % size]
        arrived = links.exchange_payloads((rank + 1) % size, newest, (rank - 1) % size)
        gathered[(rank - step - 1) % size] = arrived
    return gathered


def measured_latency(links: Links) -> float | None:
    """Return the seconds of one message; ``None`` for two participants, which do not need it.

    Each sends to the next rank and receives from the one before. All use the mean over
    participants, because a participant that chose another topology would wait for ever.
    """
    if links.size <= 2:
        return None
    out, into = torch.zeros(1), torch.zeros(1)
    took = []
    for _ in range(LATENCY_ROUNDS):
        began = time.perf_counter()
        after, before = (links.rank + 1) % links.size, (links.rank - 1) % links.size
        links.exchange(after, out, before, into)
        took.append(time.perf_counter() - began)
    total = torch.tensor([statistics.median(took)], dtype=torch.float64)
    tree.all_reduce(links, total)
    return float(total) / links.size
