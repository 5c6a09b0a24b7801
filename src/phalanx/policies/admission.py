"""Decides when a worker may begin its next step: pure rules over the workers' clocks.

The rules differ only in how far a worker may be ahead of the slowest one. The caller keeps the
clocks and the grants, asks :meth:`Rule.decide` once after each push, stores the answer, and lets
the worker go on when :meth:`Rule.admits` says so. The worker with the lowest clock is always
admitted, so no wait is for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

AWAY = 2**62
"""The clock of a worker that rests: the others do not wait for it."""

HORIZON = 64
"""How many of its own pushes DSSP looks ahead; guesses about later ones are worth nothing."""

WORTH = 0.01
"""The part of a step by which a wait has to be shorter for DSSP to let a worker run further."""


@dataclass(slots=True)
class Clocks:
    """What a rule may know of each rank."""

    steps: Sequence[int]
    """Pushes that are done, or ``AWAY``."""
    times: Sequence[float]
    """When the last push was done; after a rest, when the worker came back."""
    intervals: Sequence[float]
    """How long its last step took without waiting; 0 is unknown."""
    grants: Sequence[int]
    """What :meth:`Rule.decide` last said."""
    floor: int
    """The lowest of ``steps``, kept by the caller: a search would cost more than all else here."""

    def lead(self, rank: int) -> int:
        """How many steps ``rank`` is ahead of the slowest that is present."""
        return self.steps[rank] - self.floor


class Rule(Protocol):
    def admits(self, rank: int, clocks: Clocks) -> bool:
        """May this worker, which has done ``clocks.steps[rank]`` steps, begin the next?"""

    def decide(self, rank: int, clocks: Clocks, now: float) -> int:
        """The new grant of ``rank``, which has just pushed."""


class Free:
    """No worker waits for another (``async``)."""

    def admits(self, rank: int, clocks: Clocks) -> bool:
        return True

    def decide(self, rank: int, clocks: Clocks, now: float) -> int:
        return 0


@dataclass(frozen=True)
class Stale:
    """A worker may be at most ``bound`` steps ahead of the slowest.

    Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server"
    (2013). A bound of 0 keeps all clocks in lockstep.
    """

    bound: int

    def admits(self, rank: int, clocks: Clocks) -> bool:
        return clocks.lead(rank) <= self.bound

    def decide(self, rank: int, clocks: Clocks, now: float) -> int:
        return 0


@dataclass(frozen=True)
class Dynamic:
    """A worker may be ``low`` steps ahead, plus those that save most waiting, up to ``high``.

    Zhao et al., "Dynamic stale synchronous parallel distributed training for deep learning" (ICDCS
    2019). A worker that has used up its bound either waits for the slowest now or runs on and waits
    later. As in the paper, both workers' next pushes are predicted from the pace of their last
    steps, and it stops where the predicted wait is shortest; if waits are equal, where it is least
    ahead. Where this differs from the paper's controller:

    - The grant is a level and not a number of steps: the worker's bound is ``low + grant`` until
      it has fallen back to within ``low``. So it waits for *one* push, as the prediction assumes;
      the paper waits until it is within ``low`` again, which can take several.
    - No worker is ever more than ``high`` ahead; the paper may grant again and pass it.
    - Any worker may be granted steps, not only the fastest.
    - The wait is the time to the *next* push of the slowest; the paper takes the nearest one, even
      a past one. When several are slowest, the last of them counts.
    - Steps are timed without their waiting, so one long wait does not make a worker look slow.
    - A push that is overdue is expected now. With an unknown pace nothing is granted.
    """

    low: int
    high: int

    def admits(self, rank: int, clocks: Clocks) -> bool:
        return clocks.lead(rank) <= self.low + self._within_range(clocks.grants[rank])

    def decide(self, rank: int, clocks: Clocks, now: float) -> int:
        lead, grant = clocks.lead(rank), self._within_range(clocks.grants[rank])
        if lead <= self.low:
            return 0
        if lead <= self.low + grant:
            return grant
        return self._best_bound(self.low + grant, rank, clocks, now) - self.low

    def _within_range(self, grant: int) -> int:
        return min(max(grant, 0), self.high - self.low)

    def _best_bound(self, bound: int, rank: int, clocks: Clocks, now: float) -> int:
        """The least bound from ``bound`` to ``high`` of those with the shortest predicted wait.

        Only a new greatest lead can stop the worker: a bound that let it reach a lead once lets it
        do so again.
        """
        worth = WORTH * clocks.intervals[rank]
        best, shortest, greatest, reached_at = bound, float("inf"), bound, 0
        for push, (lead, wait) in enumerate(_predict(rank, clocks, now)):
            if lead <= greatest:
                if push - reached_at >= HORIZON // 2:  # it keeps pace: nothing stops it any more
                    return greatest if shortest > worth else best
                continue
            if wait < shortest - worth:
                best, shortest = (lead - 1 if push else bound), wait
            greatest, reached_at = lead, push
            if lead > self.high:
                break
        return best


def rule_of(name: str, options: Mapping[str, object]) -> Rule:
    """The admission rule of a strategy whose workers push to a store."""
    if name in ("bsp", "ssp"):
        return Stale(int(str(options.get("bound", 3))) if name == "ssp" else 0)
    if name == "dssp":
        return Dynamic(int(str(options.get("low", 2))), int(str(options.get("high", 8))))
    return Free()


def _predict(rank: int, clocks: Clocks, now: float) -> Iterator[tuple[int, float]]:
    """Yield for each next push of ``rank``, without waits, its lead and the time until it falls."""
    own, moment = clocks.intervals[rank], _moments(rank, clocks, now)
    if own <= 0.0 or moment is None:
        return
    lead, risen, following = clocks.lead(rank), 0, moment(clocks.floor + 1)
    for push in range(HORIZON):
        pushed_at = now + push * own
        while risen < lead + push:
            if following >= pushed_at:
                yield lead + push - risen, following - pushed_at
                break
            risen += 1
            following = moment(clocks.floor + risen + 1)
        else:
            yield 0, 0.0  # the slowest has caught up


def _moments(rank: int, clocks: Clocks, now: float) -> Callable[[int], float] | None:
    """A function of when all behind ``rank`` will have done N steps; ``None``: pace unknown."""
    own, behind = clocks.steps[rank], []
    for steps, last, interval in zip(clocks.steps, clocks.times, clocks.intervals, strict=True):
        if steps < own:
            if interval <= 0.0:
                return None
            behind.append((steps + 1, max(last + interval, now), interval))

    def moment(steps: int) -> float:
        latest = now
        for following, first, interval in behind:
            if following <= steps:
                latest = max(latest, first + (steps - following) * interval)
        return latest

    return moment


def rejoin(last: int, floor: int, newest: int) -> int:
    """The clock of a worker that comes back from ``AWAY``, where it had done ``last`` steps.

    It is at least the lowest clock present, so that no worker waits for the steps that it has
    missed. If all are away (``floor`` is ``AWAY``), it is at least ``newest``, the highest clock so
    far: the others come back too, and must not wait for this one to catch up.
    """
    return max(last, floor if floor < AWAY else newest)
