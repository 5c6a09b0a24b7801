"""Reduce-scatter within a team: each member sums some slices of all members' gradients.

It is the first half of the all-reduce of Rabenseifner, "Optimization of collective reduction
operations" (2004). In shared memory a member shows its gradient in a row of its own, and the
owner of a slice adds up that slice of all rows, in the order of the members. A team that spans
several hosts does so on each of them, into the row of the host's first member, which then exchanges
the sums with the other hosts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from phalanx.sync.arena.team import subset_barrier_of
from phalanx.sync.state.gradient_values import are_sound, clip_factor, squared_norm, squares
from phalanx.sync.state.gradients import get_grad
from phalanx.sync.state.layout import Layout
from phalanx.sync.state.replica import NOBODY, Masks
from phalanx.sync.strategy import StrategyContext

if TYPE_CHECKING:
    from phalanx.sync.reduce.between_hosts import Summing
    from phalanx.sync.reduce.early_sums import EarlySums

PIECE = 1 << 15
"""Numbers of a piece, of which a few fit into the second level of a processor's cache."""
MANY = 1 << 20
"""Numbers above which three threads of torch add up faster than one of NumPy, piece by piece."""


Add = Callable[[float, int], None]


class Reducer:
    """Each member calls ``offer`` before the team meets and ``reduce`` after it; when all have
    reduced, rows may be written again. ``across``: also sum between hosts, if no server does.
    ``starts``: each offer is for a step, so it may be sent while this worker waits for the others.
    """

    def __init__(
        self,
        context: StrategyContext,
        *,
        across: bool = True,
        topology: str | None = None,
        starts: bool = False,
    ) -> None:
        self._replica, self._shared = context.replica, context.shared
        self._team, host, hosts = context.team, context.arena.host, context.arena.hosts
        members, self._rank = context.team.members, context.arena.rank
        self._local = list(members) if hosts is None else hosts.local(members)
        """The members on this host, by their ranks in its arena."""
        self.wait_here = subset_barrier_of(host, self._local)
        """Waits for the members on this host."""
        self._row = host.rank
        layouts, shards, index = self._replica.layouts, host.workers, self._local.index(host.rank)
        self.shards = tuple(range(index, shards, len(self._local)))
        """The slices that this member sums."""
        self.leads = index == 0
        self.apart = hosts is not None
        """Whether sums lie in the row of the host's first member, as there are several hosts."""
        self._bounds = [[n.bounds(s) for s in range(shards)] for n in layouts]
        self.sums = [gradients[self._local[0]] for gradients in self._shared.gradients]
        self.reduced = [self._own_slices(i) for i in range(len(layouts))]
        """This member's slices of the team's sum, per layout and shard."""
        self._targets = [self._targets_of(i) for i in range(len(layouts))]
        self._offered = [target for own in self._targets for target in own]
        self._collectors = self._replica.collector(self._targets)
        kept = self._local[0] if self.apart else self._row
        others = [member for member in self._local if member != kept]
        self._adding = [
            (adding(out, [shared[m][slice(*bounds[s])] for m in others]), *bounds[s])
            for bounds, own, shared in zip(
                self._bounds, self.reduced, self._shared.gradients, strict=True
            )
            for s, out in zip(self.shards, own, strict=True)
        ]
        whole = self._team.size == context.arena.workers
        self._rows = slice(None) if whole else list(self._team.members)
        self._summing = self._sum_between_hosts(context, topology) if across and hosts else None
        self._starts = self._summing if starts and len(self._local) == 1 else None
        self._early: EarlySums | None = None
        self.sender = (
            self._summing.sender if self._summing else context.encoding.sender(self._sent())
        )
        self.bytes_sent = 0
        """Bytes that the last offer sent, or that the last sum sent to other hosts."""
        self._coded = context.encoding.codec is not None
        self._looks_first = self._coded or not across
        """Whether gradients are checked before they are coded or summed by others."""
        self._toll, self._bytes = context.toll, sum(n.size * n.dtype.itemsize for n in layouts)
        self._flats: list[Tensor] | None = None
        self.refused: tuple[int, ...] | None = None
        """Workers whose gradients were not finite, if the sum is not: see ``Timing``."""
        self.norm: float | None = None
        """The norm of the last sum, before it was clipped; ``None`` if it was not clipped."""
        self.ahead = self._summing.ahead if self._summing else None

    def _sum_between_hosts(self, context: StrategyContext, topology: str | None) -> Summing:
        from phalanx.sync.reduce.between_hosts import Summing

        return Summing(context, self.sums, leads=self.leads, topology=topology)

    def _sent(self) -> list[tuple[str, Layout, int, Tensor]]:
        """Return the slices that other members sum, as streams; with several hosts, none."""
        if self.apart or self._team.size == 1:
            return []
        return [
            (f"{i}.{s}", layout, s, self._targets[i][s])
            for i, layout in enumerate(self._replica.layouts)
            for s in range(len(self._bounds[i]))
            if s not in self.shards
        ]

    def _own_slices(self, layout: int) -> list[Tensor]:
        bounds = [self._bounds[layout][shard] for shard in self.shards]
        if self.apart:
            return [self.sums[layout][low:high] for low, high in bounds]
        host_buffer, dtype = self._replica.staging.host_buffer, self.sums[layout].dtype
        return [host_buffer(high - low, dtype) for low, high in bounds]

    def _targets_of(self, layout: int) -> list[Tensor]:
        """Return each gradient slice's memory: on one host ``reduced`` for own ones, or the row."""
        mine = self._shared.gradients[layout][self._row]
        targets = [mine[low:high] for low, high in self._bounds[layout]]
        if not self.apart:
            for shard, own in zip(self.shards, self.reduced[layout], strict=True):
                targets[shard] = own
        return targets

    def begin(self) -> None:
        self.sender.begin(self._shared)

    def go_ahead(self) -> None:
        """From now on, send gradients to other hosts before the worker offers them. Collective
        among the members of a host."""
        if self._early is None and self._summing:
            from phalanx.sync.reduce.early_sums import make_early_sums

            self._early = make_early_sums(
                self._replica, self._shared, self._summing.ahead, self._local, self.wait_here,
                leads=self.leads,
            )  # fmt: skip
        if self._early is not None:
            self._early.begin()

    def distrust(self) -> None:
        """Note that others write to the rows of gradients before the next step."""
        if self._early is not None:
            self._early.distrust()

    def offer(self, weight: float, clip: float | None = None) -> None:
        """Show this worker's gradients to the team."""
        gone, stale = self._early.settle() if self._early else (NOBODY, False)
        if self.ahead is not None:
            self.ahead.final()
        masks: Masks = []
        doubtful, self._flats = False, None
        for collector in self._collectors:
            masks.append(collector.collect(gone))
            doubtful |= not collector.is_finite()
        spoilt = doubtful and self._is_spoilt()
        self._shared.declare(weight, clip, masks, stale=stale, spoilt=spoilt, doubtful=doubtful)
        if self._summing or spoilt:
            self.bytes_sent = 0
        else:
            untouched = self.sender.untouched if weight else None
            self.bytes_sent = self.sender.offer(weight, masks) if untouched is None else untouched
        if self._starts is not None:
            self._starts.start()

    def _is_spoilt(self) -> bool:
        return self._looks_first and not are_sound(self._offered)

    def keep_own(self) -> Masks:
        """Take this member's own gradients as the sum, because all members have the same."""
        masks = [collector.collect() for collector in self._collectors]
        if self.apart and not self.leads:
            for own, targets in zip(self.reduced, self._targets, strict=True):
                for shard, out in zip(self.shards, own, strict=True):
                    out.copy_(targets[shard])
        return masks

    def offer_flats(self, flats: list[Tensor], weight: float) -> None:
        """Show flat tensors of the parameters' shape instead of gradients."""
        for flat, targets, bounds in zip(flats, self._targets, self._bounds, strict=True):
            for target, (low, high) in zip(targets, bounds, strict=True):
                target.copy_(flat[low:high])
        self._shared.declare(weight, None, [None] * len(flats), doubtful=True)
        self._flats, self.bytes_sent = flats, 0

    def encode(self) -> None:
        """Turn the flats that were offered into what others decode."""
        if not self._summing and not self._is_spoilt():
            self.bytes_sent = self.sender.send()

    def reduce(self, *, coded: bool = True, checked: bool = True) -> Masks:
        """Sum this member's slices; return which parameters any member used.

        If ``checked``, a sum that is not finite sets ``refused``.
        """
        shared = self._shared
        # Read before anything else: other hosts may declare the next step already.
        declared, self.norm = shared.declared_by(self._rows), None
        clip, factor = declared.clip, 1.0 / declared.weight if declared.weight else 1.0
        # A codec, or division by a small weight, may have made the sum infinite.
        doubtful = self._coded or factor > 1.0 or declared.doubtful
        early = self._early if self._flats is None else None
        stop = early.still_to_add(declared.stale) if early else None
        self.add_here(1.0 if self._summing else factor, stop)
        if self._summing:
            if self.leads:
                if declared.stale:
                    self._summing.discard()
                # Scale sums at once, alike on all hosts, unless their norm decides the factor.
                at_once = factor if clip <= 0.0 else 1.0
                self.bytes_sent = self._summing.sum(at_once, coded=coded)
                if clip > 0.0:
                    shared.norms[self._row] = squared_norm(self.sums)
            if self._early is not None:
                self._early.renew()
            self.wait_here()
            if clip > 0.0:  # the norm is of whole sums, the same on all hosts
                found = float(shared.norms[self._local[0]]) * factor**2
                self.norm = math.sqrt(found)
                factor *= clip_factor(found, clip)
                torch._foreach_mul_([out for own in self.reduced for out in own], factor)
        # All members decide alike, also one without gradients, because a check has a barrier. So
        # a sum that cannot have become infinite is not checked.
        self.refused = None
        if (checked and doubtful) or (clip > 0.0 and not self._summing):
            self.check(0.0 if self._summing else clip)
        return declared.masks

    def check(self, clip: float = 0.0) -> None:
        """Check that the slices of all members are finite, and limit their norm to ``clip``."""
        slices, self.refused = [out for own in self.reduced for out in own], None
        found = squared_norm(slices) if clip > 0.0 else squares(slices)
        self._shared.totals[self._row] = found
        self.wait_here()
        found = float(self._shared.totals[self._local].sum())
        if not math.isfinite(found) and self._is_bad(slices):
            self.refused = self._who()
        if clip > 0.0:
            self.norm = math.sqrt(found)
            if (factor := clip_factor(found, clip)) < 1.0:
                torch._foreach_mul_(slices, factor)

    def _is_bad(self, slices: list[Tensor]) -> bool:
        """Whether a slice on this host is not finite; perhaps only the sum of squares is not. Other
        hosts add other squares and may not call this, so they are not waited for."""
        self._shared.norms[self._row] = not are_sound(slices)
        self.wait_here()
        return bool(self._shared.norms[self._local].any())

    def _who(self) -> tuple[int, ...]:
        """Return the members whose own gradients are not finite. Collective."""
        own = self._flats
        if own is None:
            grads = (get_grad(p) for space in self._replica.parameters for p in space)
            own = [gradient for gradient in grads if gradient is not None]
        self._shared.spoilt[self._rank] = not are_sound(own)
        self._team.barrier()
        return tuple(member for member in self._team.members if self._shared.spoilt[member])

    def take_time(self, topology: str | None = None) -> None:
        """Let the virtual time of an all-reduce pass, as if each member were on its own host."""
        size, count = self._team.size, float(self._bytes)
        if coded := self._coded and size > 1:  # bytes of all slices but this member's own
            count = self.bytes_sent * size / (size - 1)
        self._toll.all_reduce(self._team.members, count, topology, coded=coded)

    def show_reduced(self) -> None:
        """Write this member's slices to ``sums``, where all members can see the whole sum."""
        for flat, bounds, own in zip(self.sums, self._bounds, self.reduced, strict=True):
            for shard, part in zip(self.shards, own, strict=True):
                flat[slice(*bounds[shard])] = part

    def add_here(self, factor: float = 1.0, stop: int | None = None) -> None:
        """Sum the members' slices on this host, only the first ``stop`` numbers of the buffer if
        given, times ``factor``; with several hosts, into ``sums``."""
        for add, low, high in self._adding:
            add(factor, high - low if stop is None else min(max(0, stop - low), high - low))
        if self.apart:
            self.wait_here()


def adding(out: Tensor, others: Sequence[Tensor]) -> Add:
    """Return a function that sums the first numbers of ``out`` and ``others``, times a factor.

    It works piece by piece, so that a piece's sum is still in the processor's cache when it is
    multiplied. NumPy's calls cost a third of torch's on pieces that small, but use one thread.
    """

    def add_by_torch(factor: float, count: int) -> None:
        for other in others:
            out[:count].add_(other[:count])
        if factor != 1.0:
            out[:count].mul_(factor)

    if out.dtype not in (torch.float32, torch.float64):
        return add_by_torch
    number = np.dtype(str(out.dtype).removeprefix("torch.")).type
    arrays = [out.numpy(), *(other.numpy() for other in others)]
    starts = range(0, out.numel(), PIECE)
    pieces = [[array[start : start + PIECE] for array in arrays] for start in starts]

    def add(factor: float, count: int) -> None:
        if count > MANY and torch.get_num_threads() > 2:
            add_by_torch(factor, count)
            return
        scale = number(factor)
        whole, rest = divmod(count, PIECE)
        now = pieces if count >= out.numel() else pieces[:whole]
        if now is not pieces and rest:
            now = [*now, [array[:rest] for array in pieces[whole]]]
        for total, *parts in now:
            for part in parts:
                np.add(total, part, out=total)
            if factor != 1.0:
                np.multiply(total, scale, out=total)

    return add
