"""What each worker has to do, and how long its computing takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 16
"""Random numbers that are drawn at once."""

Slow = Sequence[tuple[int, int, int, float]]
"""Worker, first and last step, factor: these steps take so many times as long."""

Lost = Sequence[tuple[int, int]]
"""Worker, step: it stops before this step of its own."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class StepDraws:
    """Seconds of computing: a mean for each worker, times a lognormal factor of mean 1.

    A ``table`` (a row for each worker, a column for each step, used again when it is at its end)
    replaces all draws. ``extra`` seconds of each step do not vary.
    """

    def __init__(
        self,
        compute: Sequence[float] | Floats,
        variation: float,
        seed: int,
        *,
        slow: Slow = (),
        table: Floats | None = None,
        extra: Floats | None = None,
    ) -> None:
        self._compute = np.asarray(compute, np.float64)
        self.workers = len(self._compute)
        self._table = None if table is None else np.asarray(table, np.float64)
        self._extra = np.zeros(self.workers) if extra is None else extra
        self._sigma = math.sqrt(math.log1p(variation * variation))
        self._random = np.random.default_rng(seed)
        self._spans: dict[int, list[tuple[int, int, float]]] = {}
        for worker, first, last, factor in slow:
            self._spans.setdefault(worker, []).append((first, last, factor))
        self._slowed = np.zeros(self.workers, bool)
        self._slowed[list(self._spans)] = True
        self._means: list[float] = self._compute.tolist()
        self._extras: list[float] = self._extra.tolist()
        self._stream, self._left = self._one_by_one(), np.empty(0)

    def one(self, worker: int, step: int) -> float:
        if self._table is None:
            seconds = self._means[worker] * next(self._stream)
        else:
            seconds = float(self._table[worker, step % self._table.shape[1]])
        if worker in self._spans:
            seconds *= self._factor(worker, step)
        return seconds + self._extras[worker]

    def many(self, workers: Ints, steps: Ints) -> Floats:
        """One step each of several workers."""
        if self._table is not None:
            seconds = self._table[workers, steps % self._table.shape[1]]
        else:
            seconds = self._compute[workers] * self._take(len(workers))
        if self._spans:
            for i in np.flatnonzero(self._slowed[workers]).tolist():
                seconds[i] *= self._factor(int(workers[i]), int(steps[i]))
        return np.asarray(seconds + self._extra[workers])

    def block(self, first: int, count: int) -> Floats:
        """``count`` steps (rows) of all workers (columns)."""
        if self._table is not None:
            columns = np.arange(first, first + count) % self._table.shape[1]
            seconds = self._table.T[columns]
        else:
            seconds = self._fresh(count * self.workers).reshape(count, self.workers)
            seconds *= self._compute
        for worker, spans in self._spans.items():
            for begin, last, factor in spans:
                seconds[max(0, begin - first) : max(0, last + 1 - first), worker] *= factor
        return np.asarray(seconds + self._extra)

    def _factor(self, worker: int, step: int) -> float:
        return math.prod(f for first, last, f in self._spans[worker] if first <= step <= last)

    def _fresh(self, count: int) -> Floats:
        if self._sigma == 0.0:
            return np.ones(count)
        drawn = self._random.standard_normal(count)
        drawn *= self._sigma
        drawn -= self._sigma**2 / 2
        return np.asarray(np.exp(drawn, out=drawn))

    def _take(self, count: int) -> Floats:
        if len(self._left) < count:
            self._left = self._fresh(max(CHUNK, count))
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def _one_by_one(self) -> Iterator[float]:
        while True:
            yield from self._fresh(CHUNK).tolist()


class Work:
    """Who does another step: each worker so many, or all together so many (``by_samples``)."""

    def __init__(self, draws: StepDraws, steps: int, *, lost: Lost = (), by_samples: bool) -> None:
        self.draws, self.workers = draws, draws.workers
        self._shared, self._unclaimed = by_samples, self.workers * steps
        self.ends = np.full(self.workers, np.iinfo(np.int64).max if by_samples else steps)
        for worker, step in lost:
            self.ends[worker] = min(self.ends[worker], step)
        self._ends: list[int] = self.ends.tolist()

    def more(self, worker: int, done: int) -> bool:
        """Whether ``worker``, which has done so many steps, begins another."""
        if done >= self._ends[worker] or self._unclaimed == 0:
            return False
        self._unclaimed -= self._shared
        return True

    def more_of(self, workers: Ints, done: Ints) -> NDArray[np.bool_]:
        """The same for several, in this order."""
        more: NDArray[np.bool_] = done < self.ends[workers]
        if self._shared:
            more &= np.cumsum(more) <= self._unclaimed
            self._unclaimed -= int(more.sum())
        return more
