"""Adds up the sums of a team's hosts, which one member of each host exchanges.

Without a codec it is an all-reduce of the flat sums. Encoded sums cannot be added on the way, so
every host receives the messages of all others, decodes them, and adds all up in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phalanx.sync.codec.codec import Payload
from phalanx.sync.codec.make import make_codec, parts_of
from phalanx.sync.reduce.early_gradients import cuts_of
from phalanx.sync.state.gradient_values import are_sound
from phalanx.sync.state.layout import reshard
from phalanx.sync.strategy import StrategyContext

if TYPE_CHECKING:
    from phalanx.sync.collective.algorithms.ahead import EarlySum

NO_MESSAGES = -1
"""Sent as a count if gradients are not finite: a codec may hide that, and keep it in its state."""


class Summing:
    """Adds up the hosts' ``sums`` in place; only the member that ``leads`` a host touches them."""

    def __init__(
        self,
        context: StrategyContext,
        sums: list[Tensor],
        *,
        leads: bool,
        topology: str | None = None,
    ) -> None:
        hosts, team, self._shared = context.arena.hosts, context.team, context.shared
        assert hosts is not None
        layouts = [reshard(n, 1) for n in context.replica.layouts]
        self._sums, self._mine = sums, [r for r in team.members if r in hosts.here]
        tag = f"{context.tag}.{team.members[0]}"
        self._collective = hosts.collective(tag, team.members, topology) if leads else None
        streams = [(f"host.{i}", n, 0, sums[i]) for i, n in enumerate(layouts)]
        self.sender = context.encoding.sender(streams if self._collective else [])
        codec = context.encoding.codec
        self._decoders = [make_codec(codec, parts_of(n, 0), 0) for n in layouts] if codec else []
        self._scratch = [torch.empty_like(flat) for flat in sums] if codec else []
        self.ahead: EarlySum | None = None
        """The sum between hosts, if parts of it may be sent before the rest is computed."""
        if self._collective and not codec and len(sums) == 1:
            self.ahead = self._collective.sum_ahead(
                sums[0], cuts_of(layouts[0]), on_gpu=context.replica.staging.away
            )

    def start(self) -> None:
        """Say that ``sum`` comes next, and that the numbers do not change until then."""
        if self.ahead is not None:
            self.ahead.start()

    def discard(self) -> None:
        """Throw away what was sent early, because some of it has changed. All hosts do so."""
        if self.ahead is not None:
            self.ahead.discard()

    def sum(self, factor: float = 1.0, *, coded: bool = True) -> int:
        """Sum in place, times ``factor``; return the bytes that went to other hosts."""
        if self.ahead is not None:
            return self.ahead.finish(factor)
        sent = self._sum(coded) if self._collective else 0
        if factor != 1.0:
            torch._foreach_mul_(self._sums, factor)
        return sent

    def _sum(self, coded: bool) -> int:
        assert self._collective is not None
        if not self._decoders or not coded:
            return self._collective.all_reduce(self._sums)
        if not are_sound(self._sums):
            return self._add_up([], [NO_MESSAGES])
        payloads = self.sender.encode() if self._has_something() else []
        messages = [payload.tensors for payload in payloads]
        return self._add_up(messages, [len(tensors) for tensors in messages])

    def _has_something(self) -> bool:
        """Whether this host has samples or gradients; else a codec's residual waits."""
        if float(self._shared.weights[self._mine].sum()) > 0.0:
            return True
        masks = self._shared.used_by(self._mine)
        return any(mask is None or any(mask) for mask in masks)

    def _add_up(self, messages: list[tuple[Tensor, ...]], lengths: list[int]) -> int:
        assert self._collective is not None
        counts, before = torch.tensor(lengths, dtype=torch.int64), self._collective.sent
        found = self._collective.all_gather([counts, *(t for tensors in messages for t in tensors)])
        torch._foreach_zero_(self._sums)
        for numbers, *tensors in found:  # in the order of the hosts, so that all get the same bits
            self._add(iter(tensors), numbers.tolist())
        return self._collective.sent - before

    def _add(self, tensors: Iterator[Tensor], counts: list[int]) -> None:
        """Add one host's messages: one per layout, or none; NaN if its gradients are not finite."""
        if counts == [NO_MESSAGES]:
            torch._foreach_add_(self._sums, torch.nan)
            return
        for i, count in enumerate(counts):
            payload = Payload(tuple(itertools.islice(tensors, count)))
            self._decoders[i].decode(payload, self._scratch[i])
            self._sums[i].add_(self._scratch[i])
