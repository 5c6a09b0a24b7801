"""Decides which worker reads which samples: each exactly once per pass, at any speeds.

Pure functions and values. In lockstep every global batch is cut into shares, one per worker; a
free-running worker instead takes the next chunk from a counter that all workers share. Either
way a *pass* over the data is a range of positions ``0 … n`` in an order that all workers
derive from the seed, and every position is given out once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

LANE_CELLS = 5
"""Numbers by which ``lanes`` describes what one worker reads of data in blocks."""


@dataclass(frozen=True)
class Lease:
    """Positions ``start … end`` of a pass.

    ``share`` is their part of a whole batch. If a last batch has fewer samples than there are
    workers, a worker without a part of it reads all of it, and its gradient does not count. So all
    workers go through the script's loop equally often. The whole batch of the workers that step
    together ends at ``batch_end``; a round of local training may end there too.
    """

    start: int
    end: int
    share: float
    batch_end: int = 0
    ends_round: bool = False
    emphasis: float = 1.0
    """The size of the whole chunk, of which this is a part, as a multiple of an equal share."""
    whole: int = 0
    """Samples of the batch that this is a part of, over all workers that step together."""
    full: float = 1.0
    """The size of that batch as a share of a whole one; below 1 for a shorter last batch."""
    total: int = 0
    """All samples given to its worker up to the end of this lease, if these are counted."""
    ends: tuple[int, ...] = ()
    """In lockstep: where each worker's part of the batch ends; the first number is 0."""

    samples: int = field(init=False)
    """Samples of the lease that count as this worker's."""
    part: float = field(init=False)
    """The lease's part of its batch; the parts of workers that step together add up to 1."""

    def __post_init__(self) -> None:
        samples = self.end - self.start if self.share else 0
        object.__setattr__(self, "samples", samples)
        object.__setattr__(self, "part", samples / self.whole if self.whole else 1.0)


@dataclass(frozen=True)
class Segment:
    """A range of a pass that is trained under one phase of the strategy."""

    start: int
    end: int
    phase: int


def split(total: int, shares: Sequence[float]) -> list[int]:
    """Cut ``total`` samples in proportion to ``shares``; returns the ends, the last is ``total``.

    Rounding the running sum loses and repeats nothing.
    """
    whole, running, ends = sum(shares), 0.0, []
    for share in shares:
        running += share
        ends.append(round(total * running / whole))
    ends[-1] = total
    return ends


def split_among_all(total: int, shares: Sequence[float], least: int = 1) -> list[int]:
    """Like :func:`split`, but no part is smaller than ``least`` if there are enough samples.

    A worker without samples is never measured again, and would never get any. If there are too few
    for all, some parts are 0 and the others at least ``least``, unless the whole batch is smaller.
    """
    ends, workers = split(total, shares), len(shares)
    if total < workers * least:
        active = max(1, total // least)  # the first ones get an equal part each, which is enough
        return [*split(total, [1.0] * active), *[total] * (workers - active)]
    if all(b - a >= least for a, b in itertools.pairwise([0, *ends])):
        return ends
    return [end + least * (i + 1) for i, end in enumerate(split(total - workers * least, shares))]


def lease_of(
    start: int,
    first: int,
    last: int,
    whole: int,
    want: int,
    *,
    ends_round: bool = False,
    ends: tuple[int, ...] = (),
) -> Lease:
    """The lease of samples ``first … last`` in a batch of ``whole`` (``want`` if it were full)."""
    begin, end = (first, last) if first < last else (0, whole)
    share, over, full = (last - first) / want, start + whole, whole / want
    return Lease(start + begin, start + end, share, over, ends_round, 1.0, whole, full, 0, ends)


def lockstep(
    segment: Segment,
    batch: int,
    rank: int,
    shares: Sequence[float],
    every: int = 0,
    *,
    least: int = 1,
    fixed: bool = False,
    left: Sequence[int] | None = None,
) -> Iterator[Lease]:
    """This worker's share of each global batch.

    A round is ``every`` batches; the last one of a segment may be shorter. ``least``: the fewest
    samples of a share that is not empty. ``fixed``: the same columns in a smaller last batch.
    ``left``: how many samples each worker has that only it can read; all then end together.
    """
    known = 0
    ends: tuple[int, ...] = (0,)
    for number, start in enumerate(range(segment.start, segment.end, batch), 1):
        total = min(batch, segment.end - start)
        if left is None:
            if total != known:  # only a last batch is cut otherwise than those before it
                known = total
                parts = split_among_all(batch if fixed else total, shares, least)
                ends = (0, *(min(end, total) for end in parts))
        else:
            ends = (0, *split(total, left))
            taken = itertools.pairwise(ends)
            left = [rows - (b - a) for rows, (a, b) in zip(left, taken, strict=True)]
        over = start + total
        round_over = bool(every) and (number % every == 0 or over == segment.end)
        first, last = ends[rank], ends[rank + 1]
        yield lease_of(start, first, last, total, batch, ends_round=round_over, ends=ends)


@dataclass(frozen=True)
class Counter:
    """How much of a free-running segment (``ticket``, which ends at ``end``) has been given out.

    ``cut`` is a ticket of which the rest is not given out.
    """

    ticket: int
    position: int
    end: int = 0
    cut: int = -1


def claim(
    counter: Counter, ticket: int, segment: Segment, want: int, least: int = 1
) -> tuple[Counter, Lease | None]:
    """Take the next ``want`` samples of ``segment``; ``None`` when they are all given out.

    No part has fewer samples than ``least``, unless fewer are left.

    Tickets grow from segment to segment, and a worker enters a segment only after the previous one
    is given out completely. So one counter is enough, and an old ticket means "finished".
    """
    if counter.ticket > ticket or counter.cut == ticket:
        return counter, None
    start = segment.start if counter.ticket < ticket else counter.position
    if start >= segment.end:
        return Counter(ticket, start, segment.end, counter.cut), None
    end = min(start + max(want, least), segment.end)
    if segment.end - end < least:  # too few to be left for another
        end = segment.end
    lease = lease_of(start, 0, end - start, end - start, want)
    return Counter(ticket, end, segment.end, counter.cut), lease


@dataclass(frozen=True)
class Given:
    """The record of a lease; ``total``: all samples given to its worker up to its end."""

    start: int
    end: int
    want: int
    total: int

    @property
    def samples(self) -> int:
        return self.end - self.start

    def again(self, total: int) -> Lease:
        """A lease of the same samples for another worker, which was given ``total`` before."""
        lease = lease_of(self.start, 0, self.samples, self.samples, self.want)
        return replace(lease, total=total + self.samples)


@dataclass(frozen=True)
class Applied:
    """How many samples of a lost worker are in the store, counted like ``Given.total``.

    Up to ``whole`` they are in all parts of the store, up to ``begun`` only in some.
    """

    whole: int
    begun: int


def untrained(given: Sequence[Given], applied: Applied) -> tuple[int, int]:
    """How many of the last leases ``given`` to a lost worker others have to train, and how many
    samples are lost, because only a part of the store has their update."""
    back = sum(one.total > applied.begun for one in given)
    in_part = sum(one.samples for one in given if applied.whole < one.total <= applied.begun)
    return back, in_part


def cut(counter: Counter) -> Counter | None:
    """Give out no more of the segment under way; ``None`` when there is nothing left to keep."""
    if counter.ticket < 0 or counter.position >= counter.end:
        return None
    return Counter(counter.ticket, counter.position, counter.end, counter.ticket)


@dataclass(frozen=True)
class SettledSamples:
    """Which samples of a lost worker were trained, given back, or lost."""

    worker: int
    trained: int
    """Samples of this training that are in its updates."""
    of_pass: int
    """Samples of the present pass that are in its updates."""
    back: int
    """Samples that other workers will train."""
    lost: int
    """Samples that none will train: in a partial update, or in gradients without their step."""
