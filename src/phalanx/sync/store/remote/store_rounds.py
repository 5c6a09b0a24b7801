"""Takes a shard's steps when all contributors have given their share (``bsp``).

Shares are summed in the order of the ranks, whatever the order in which they came, so that a run
can be repeated bit for bit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from phalanx.core.errors import PeerLost
from phalanx.sync.state.gradient_values import clip_factor, squared_norm
from phalanx.sync.store.remote.store_messages import Contribute, StoreRefused, Used
from phalanx.sync.store.remote.store_shard import Shard

_LOOK = 0.25
"""Seconds between two checks by a waiting thread that its own client is still connected."""


@dataclass
class _Round:
    step: int
    expected: tuple[int, ...]
    claimed: set[int] = field(default_factory=set)
    given: dict[int, Contribute] = field(default_factory=dict)
    squares: float | None = None

    def missing(self) -> list[int]:
        return [rank for rank in self.expected if rank not in self.given]


class Rounds:
    """The rounds of a shard, one at a time; all but receiving is done under the shard's lock."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._changed = threading.Condition(shard.lock)
        self._optimizers = shard.optimizers()
        self._rows: dict[int, list[Tensor]] = {}
        self._round: _Round | None = None
        self._taken_squares: float | None
        self._taken, self._taken_squares = -1, None
        """The last step that was taken, and the squared norm that was reported for it."""
        self._failed: tuple[int, str] | None = None
        """A step that could not be taken, and why, to answer later requests for it."""
        self._gone: dict[int, str] = {}

    def claim(self, share: Contribute) -> list[Tensor]:
        """Return memory for a share that is about to be received."""
        with self._changed:
            current = self._enter(share)
            if share.rank in current.claimed:
                raise StoreRefused(f"worker {share.rank} contributed to step {share.step} already")
            if share.rank not in current.expected:
                raise StoreRefused(f"worker {share.rank} is not expected in step {share.step}")
            current.claimed.add(share.rank)
            if share.rank not in self._rows:
                self._rows[share.rank] = self._shard.blank()
            return self._rows[share.rank]

    def _enter(self, share: Contribute) -> _Round:
        expected = tuple(sorted(set(share.expected)))
        current = self._round
        if current is None:
            if share.step == self._taken:
                raise StoreRefused(f"step {share.step} has been taken already")
            current = self._round = _Round(share.step, expected)
        if (current.step, current.expected) != (share.step, expected):
            raise StoreRefused(
                f"worker {share.rank} is at step {share.step} while others are at {current.step}",
                "Let all workers take the same steps, and leave the loop at the same point.",
            )
        return current

    def withdraw(self, share: Contribute) -> None:
        """Withdraw a contribution that did not arrive as a whole."""
        with self._changed:
            if self._round is not None and self._round.step == share.step:
                self._round.claimed.discard(share.rank)

    def add(self, share: Contribute) -> None:
        """Add a share that has arrived; the last share completes the step, or the norm for it."""
        with self._changed:
            current = self._round
            if current is None or current.step != share.step:
                self._raise_failure(share.step)
                raise StoreRefused(f"step {share.step} is over")
            current.given[share.rank] = share
            if not current.missing():
                self._complete(current)
            else:
                self._look_for_gone()

    def _complete(self, current: _Round) -> None:
        # The mean of all shares, in the memory of the first one.
        sums = self._rows[current.expected[0]]
        if current.given[current.expected[0]].empty:
            torch._foreach_zero_(sums)
        for rank in current.expected[1:]:
            if not current.given[rank].empty:
                torch._foreach_add_(sums, self._rows[rank])
        total = sum(current.given[rank].weight for rank in current.expected)
        if total not in (0.0, 1.0):
            torch._foreach_mul_(sums, 1.0 / total)
        shares = current.given.values()
        clip = max((share.clip or 0.0 for share in shares), default=0.0)
        if any(share.norm for share in shares):
            current.squares = squared_norm(sums)
            self._changed.notify_all()  # the factor depends on the norms of other servers too
        else:
            self._take(current, clip_factor(squared_norm(sums), clip) if clip else 1.0)

    def _take(self, current: _Round, factor: float) -> None:
        first = current.given[current.expected[0]]
        gradients = self._rows[first.rank]
        if factor < 1.0:
            torch._foreach_mul_(gradients, factor)
        used = union([current.given[rank].used for rank in current.expected])
        self._shard.update(self._optimizers, gradients, first.groups, used)
        self._taken, self._taken_squares, self._round = current.step, current.squares, None
        self._changed.notify_all()

    def commit(self, step: int, factor: float) -> None:
        """Take the step with ``factor``, unless the commit of another client has taken it."""
        with self._changed:
            current = self._round
            if current is not None and current.step == step and current.squares is not None:
                self._take(current, factor)
            elif self._taken != step:
                self._raise_failure(step)
                raise StoreRefused(f"step {step} does not wait for a factor")

    def wait(self, step: int, alive: Callable[[], bool]) -> float | None:
        """Wait until ``step`` is taken or its squared norm known; return that norm, if any."""
        with self._changed:
            while True:
                current = self._round
                if self._taken == step:
                    return self._taken_squares
                self._raise_failure(step)
                if current is None or current.step != step:
                    raise StoreRefused(f"no worker has contributed to step {step}")
                if current.squares is not None:
                    return current.squares
                self._look_for_gone()
                if not self._changed.wait(_LOOK) and not alive():
                    raise PeerLost("the client that waited is gone")

    def reset(self) -> None:
        """Count steps anew, because other parameters were loaded."""
        with self._changed:
            self._taken, self._taken_squares, self._round = -1, None, None
            self._changed.notify_all()

    def arrive(self, ranks: Iterable[int]) -> None:
        with self._changed:
            for rank in ranks:
                self._gone.pop(rank, None)

    def lose(self, ranks: Iterable[int], name: str) -> None:
        """Note that the workers ``ranks`` of client ``name`` are lost: steps with them fail."""
        with self._changed:
            self._gone.update(dict.fromkeys(ranks, name))
            self._changed.notify_all()

    def _look_for_gone(self) -> None:
        current = self._round
        if current is None:
            return
        for rank in current.missing():
            if rank in self._gone:
                cause = f"worker {rank} on {self._gone[rank]} is gone; step {current.step} needs it"
                self._failed, self._round = (current.step, cause), None
                self._changed.notify_all()
                raise PeerLost(cause)

    def _raise_failure(self, step: int) -> None:
        if self._failed is not None and self._failed[0] == step:
            raise PeerLost(self._failed[1])


def union(masks: Sequence[Used]) -> Used:
    """Return the parameters that any worker used; ``None`` means all."""
    return [_union_of([mask[i] for mask in masks]) for i in range(len(masks[0]))]


def _union_of(masks: Sequence[bytes | None]) -> bytes | None:
    known = [mask for mask in masks if mask is not None]
    if len(known) < len(masks):
        return None
    return bytes(map(any, zip(*known, strict=True)))
