"""What an engine takes, a cluster and the work of its workers, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phalanx.policies.collective_cost import MESSAGE_SECONDS

CHUNK = 1 << 16
"""Random numbers that are drawn at once."""

Lost = Sequence[tuple[int, int]]
"""Pairs of a lost worker and the step before which it stops."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Trace = Callable[[int, int, float, float, int], object]
"""Gets rank, step, when its computing began, when the worker was admitted to go on after it, and
how many updates were in the parameters that it was computed with."""


@dataclass(frozen=True)
class Outcome:
    """A training, or a piece of one, in virtual time."""

    seconds: float
    """Virtual time at the end."""
    done: Ints
    """Steps of each worker."""
    waited: Floats
    """Seconds that each worker waited for others: at barriers, gates, and servers."""
    staleness: Ints
    """How many pushes had each staleness (updates by others in between); empty in lockstep."""

    @property
    def steps(self) -> int:
        """Steps of all workers."""
        return int(self.done.sum())

    @property
    def mean_staleness(self) -> float:
        total = float(self.staleness @ np.arange(len(self.staleness)))
        return total / max(1, int(self.staleness.sum()))


@dataclass(frozen=True)
class FreeCluster:
    """A simulated cluster for strategies whose workers push to servers independently.

    A worker computes and sends a part of its push to each server, which applies one part after
    another. When all parts are applied, the worker's clock rises by one, and it waits until the
    rule admits it; then the reply comes. Workers of a machine share its link and, if links are
    limited, take turns on its connections. Nothing that stays on a machine uses a link.
    """

    compute: Sequence[float] | Floats
    """Mean seconds of a step of each worker."""
    variation: float
    """Standard deviation of a step's seconds, as a share of their mean."""
    homes: Sequence[int]
    """The machine of each worker."""
    servers: Sequence[int]
    """The machine of each server; each keeps an equal part of the parameters."""
    push_bytes: float
    reply_bytes: float
    """Bytes of a whole push, and of the reply to it."""
    sending: Sequence[float]
    receiving: Sequence[float]
    """Bytes per second of each machine's link; ``inf`` is no limit."""
    latency: float
    """Seconds of any message, however small."""
    update: float
    """Seconds for which a server is busy with its part of a push."""

    @property
    def limited(self) -> bool:
        """Whether anything that is sent takes longer because of its size."""
        used = {*self.homes, *self.servers}
        limited = any(
            math.isfinite(self.sending[m]) or math.isfinite(self.receiving[m]) for m in used
        )
        return limited and len(used) > 1 and self.push_bytes + self.reply_bytes > 0

    def queued(self) -> FreeCluster:
        """The same cluster with queues instead of limited links: each worker's own link makes its
        steps longer, and a server is busy while its link carries pushes and replies, and those of
        the workers beside it. Both sides handle each part.

        If links have room, this is within a few percent of fair shares. If servers' links are
        saturated, times are too short: fair shares let pushes bunch, most with many servers.
        """
        sending, receiving = np.array(self.sending), np.array(self.receiving)
        held = np.bincount(self.servers, minlength=len(sending)) / len(self.servers)
        beside = np.bincount(self.homes, minlength=len(sending)) / len(self.homes)
        served, asked = held * (1 - beside), beside * (1 - held)
        incoming = (served * self.push_bytes + asked * self.reply_bytes) / receiving
        outgoing = (served * self.reply_bytes + asked * self.push_bytes) / sending
        busy = np.maximum(incoming, outgoing)[list(self.servers)]
        alone = self.push_bytes / sending + self.reply_bytes / receiving
        own = (1 - held) * (alone + len(self.servers) * MESSAGE_SECONDS)
        no_limit = [math.inf] * len(sending)
        return replace(
            self,
            compute=np.asarray(self.compute) + own[list(self.homes)],
            update=max(self.update + MESSAGE_SECONDS, float(busy.max())),
            sending=no_limit,
            receiving=no_limit,
        )


class StepDraws:
    """Seconds of computing: a mean for each worker, times a lognormal factor of mean 1.

    A ``table`` (a row for each worker, a column for each step, used again when it is at its end)
    replaces all draws.
    """

    def __init__(
        self,
        compute: Sequence[float] | Floats,
        variation: float,
        seed: int,
        table: Floats | None = None,
    ) -> None:
        self._compute, self._table = np.asarray(compute, np.float64), table
        self._means: list[float] = self._compute.tolist()
        self.workers = len(self._means)
        self._sigma = math.sqrt(math.log1p(variation * variation))
        self._random = np.random.default_rng(seed)
        self._stream = self._one_by_one()

    def one(self, worker: int, step: int) -> float:
        if self._table is None:
            return self._means[worker] * next(self._stream)
        return float(self._table[worker, step % self._table.shape[1]])

    def block(self, first: int, count: int) -> Floats:
        """Seconds of ``count`` steps (rows) of all workers (columns)."""
        if self._table is not None:
            columns = np.arange(first, first + count) % self._table.shape[1]
            return np.asarray(self._table.T[columns])
        drawn: Floats = self._fresh(count * self.workers).reshape(count, self.workers)
        drawn *= self._compute
        return drawn

    def _fresh(self, count: int) -> Floats:
        if self._sigma == 0.0:
            return np.ones(count)
        drawn = self._random.standard_normal(count)
        drawn *= self._sigma
        drawn -= self._sigma**2 / 2
        return np.asarray(np.exp(drawn, out=drawn))

    def _one_by_one(self) -> Iterator[float]:
        while True:
            yield from self._fresh(CHUNK).tolist()


class Work:
    """Decides who does another step: each does ``steps``, or all share them (``by_samples``)."""

    def __init__(self, draws: StepDraws, steps: int, *, lost: Lost = (), by_samples: bool) -> None:
        self.draws, self.workers = draws, draws.workers
        self._shared, self._unclaimed = by_samples, self.workers * steps
        self._ends: list[float] = [math.inf if by_samples else steps] * self.workers
        for worker, step in lost:
            self._ends[worker] = min(self._ends[worker], step)
        self.done = np.zeros(self.workers, np.int64)
        """Steps done by the workers that have finished."""

    def more(self, worker: int, done: int) -> bool:
        """Whether ``worker``, which has done so many steps, begins another."""
        if done >= self._ends[worker] or self._unclaimed == 0:
            self.done[worker] = done
            return False
        self._unclaimed -= self._shared
        return True
