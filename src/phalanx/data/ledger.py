"""Who reads which samples: each exactly once per pass, whatever the workers' speeds.

Pure functions and values. In lockstep every global batch is cut into shares, one per worker; a
free-running worker instead takes the next chunk from a counter that all workers share. Either
way a *pass* over the data is a stretch of positions ``0 … n`` in an order that all workers
derive from the seed, and every position is given out once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Lease:
    """Positions ``start … end`` of a pass.

    ``share`` is how much of a whole batch they are. A last batch may have fewer samples than there
    are workers: one that has no part of it reads all of it, and its gradient counts nothing. So
    every worker goes through the script's loop equally often. The batch of all workers that step
    together ends at ``batch_end``, and there may be where a round of training apart ends.
    """

    start: int
    end: int
    share: float
    batch_end: int = 0
    ends_round: bool = False
    emphasis: float = 1.0
    """How much more than an equal share the whole chunk is, of which this is the worker's part."""
    whole: int = 0
    """Samples of the batch that this is a part of, over all workers that step together."""
    full: float = 1.0
    """That batch, as a share of a whole one; below 1 for a shorter last one."""

    @property
    def samples(self) -> int:
        """Those that count as this worker's."""
        return self.end - self.start if self.share else 0

    @property
    def part(self) -> float:
        """Of its batch; the parts of all workers that step together add up to 1."""
        return self.samples / self.whole if self.whole else 1.0


@dataclass(frozen=True)
class Segment:
    """A stretch of a pass that is trained under one phase of the strategy."""

    start: int
    end: int
    phase: int


def order(samples: int, seed: int, number: int, shuffle: bool = True) -> torch.Tensor:
    """The order of pass ``number``; the same on every worker."""
    if not shuffle:
        return torch.arange(samples)
    mixed = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(mixed >> np.uint64(1)))
    return torch.randperm(samples, generator=generator)


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


def split_among_all(total: int, shares: Sequence[float]) -> list[int]:
    """Like :func:`split`, but nobody is left without a sample where there are enough.

    Who has none is never measured again, and would stay without.
    """
    ends, workers = split(total, shares), len(shares)
    if total < workers or all(a < b for a, b in itertools.pairwise([0, *ends])):
        return ends
    return [end + i + 1 for i, end in enumerate(split(total - workers, shares))]


def part_of(total: int, shares: Sequence[float], index: int) -> tuple[int, int]:
    """Where one worker's part begins and ends. Of fewer samples than workers the first get one
    each: the first worker, whose figures and files are kept, is never without."""
    if total < len(shares):
        return min(index, total), min(index + 1, total)
    ends = [0, *split_among_all(total, shares)]
    return ends[index], ends[index + 1]


def lease_of(
    start: int, first: int, last: int, whole: int, want: int, *, ends_round: bool = False
) -> Lease:
    """Samples ``first … last`` of a batch of ``whole`` at ``start``, where ``want`` were wanted."""
    begin, end = (first, last) if first < last else (0, whole)
    share, over = (last - first) / want, start + whole
    return Lease(start + begin, start + end, share, over, ends_round, 1.0, whole, whole / want)


def lockstep(
    segment: Segment, batch: int, rank: int, shares: Sequence[float], every: int = 0
) -> Iterator[Lease]:
    """This worker's share of each global batch.

    A round is ``every`` batches; the last one of a segment may be shorter.
    """
    for number, start in enumerate(range(segment.start, segment.end, batch), 1):
        total = min(batch, segment.end - start)
        first, last = part_of(total, shares, rank)
        over = start + total
        round_over = bool(every) and (number % every == 0 or over == segment.end)
        yield lease_of(start, first, last, total, batch, ends_round=round_over)


@dataclass(frozen=True)
class Counter:
    """How far a free-running segment (``ticket``, which ends at ``end``) has been given out.

    ``cut`` is the ticket of which no more is given out, although there is some left.
    """

    ticket: int
    position: int
    end: int = 0
    cut: int = -1


def claim(
    counter: Counter, ticket: int, segment: Segment, want: int
) -> tuple[Counter, Lease | None]:
    """Take the next ``want`` samples of ``segment``; ``None`` when they are all given out.

    Tickets grow from segment to segment, and a worker enters one only after the one before has
    been given out completely: so one counter is enough, and an old ticket means "finished".
    """
    if counter.ticket > ticket or counter.cut == ticket:
        return counter, None
    start = segment.start if counter.ticket < ticket else counter.position
    if start >= segment.end:
        return Counter(ticket, start, segment.end, counter.cut), None
    end = min(start + want, segment.end)
    lease = lease_of(start, 0, end - start, end - start, want)
    return Counter(ticket, end, segment.end, counter.cut), lease


def cut(counter: Counter) -> Counter | None:
    """Give out no more of the segment under way; ``None`` when there is nothing left to keep."""
    if counter.ticket < 0 or counter.position >= counter.end:
        return None
    return Counter(counter.ticket, counter.position, counter.end, counter.ticket)
