"""Plans, by pure arithmetic, how the time of a probe is spent within its budget on any link."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

from phalanx.policies.collective_choice import MOST_DIRECT
from phalanx.policies.collective_cost import COSTS, LinkSpeed
from phalanx.pool.measured import CollectiveFigures

SIZES = (64, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
"""Bytes of the collectives that are timed."""
NAMES = ("all_reduce.direct", "all_reduce.ring", "all_reduce.butterfly", "all_reduce.tree")
"""The collectives that are timed, because training waits for them."""
PAIRS_SHARE = 0.4
"""The largest part of the budget for pairs; the rest is for collectives."""
LONGEST_PAIR = 1.0
LONGEST_COLLECTIVE = 1.2
MOST_REPEATS = 30
BESIDES = 2
"""Repetitions added for what is not measured of a collective: warm-up, barriers, requests."""


def names_for(participants: int) -> list[str]:
    """Return the collectives that are timed with so many machines."""
    direct = participants <= MOST_DIRECT
    return [name for name in NAMES if direct or name != "all_reduce.direct"]


@dataclass
class Schedule:
    """Decides the order of the collectives, how often each runs, and which are left out.

    Small sizes come first. The seconds that a collective took beyond its formula at one size are
    added to the formula at the next, because handling a message does not depend on its size.
    """

    participants: int
    link: LinkSpeed
    sizes: Sequence[int] = SIZES
    _beyond: dict[str, float] = field(default_factory=dict)

    def measurements(self) -> Iterator[tuple[str, int]]:
        for size in self.sizes:
            for name in names_for(self.participants):
                yield name, size

    def predicted(self, name: str, size: int) -> float:
        return COSTS[name](self.participants, size).seconds(self.link)

    def expected(self, name: str, size: int) -> float:
        """Return the seconds of one repetition, from the formula and from smaller sizes."""
        return self.predicted(name, size) + self._beyond.get(name, 0.0)

    def least(self, name: str, size: int) -> float:
        """Return the seconds of a single repetition, together with what is not measured."""
        return self.expected(name, size) * (1 + BESIDES)

    def repeats(
        self, name: str, size: int, left: float, later: Sequence[tuple[str, int]] = ()
    ) -> int:
        """Return how often to run a collective in the ``left`` seconds; 0: there is no time for it.

        Of the collectives that come ``later``, those of this size keep time for one repetition
        each, and each other size keeps an equal share of the time.
        """
        least = self.least(name, size)
        if least > left:
            return 0
        alike = [other for other in later if other[1] == size]
        sizes = len({size, *(other for _, other in later)})
        spare = left / sizes - least - sum(self.least(*other) for other in alike)
        share = least + min(LONGEST_COLLECTIVE, max(0.0, spare) / (1 + len(alike)))
        return max(1, min(MOST_REPEATS, int(share / self.expected(name, size)) - BESIDES))

    def learn(self, name: str, size: int, measured: float) -> None:
        self._beyond[name] = max(0.0, measured - self.predicted(name, size))


def handling(schedule: Schedule, figures: Iterable[CollectiveFigures]) -> float | None:
    """Return the seconds per message beyond latency and bytes, as measured at the smallest size."""
    smallest = [each for each in figures if each.bytes == min(schedule.sizes)]
    link, found = schedule.link, []
    for each in smallest:
        cost = COSTS[each.name](schedule.participants, each.bytes)
        explained = link.latency * cost.rounds + cost.bytes / link.bandwidth
        found.append(max(0.0, each.measured - explained) / cost.messages)
    return median(found) if found else None


def all_reached(names: Iterable[str], reached: Set[frozenset[str]]) -> list[str]:
    """Return machines that all reach each other, leaving out those with the most missing links."""
    chosen = list(names)
    while len(chosen) > 1:
        missing = [pair for pair in combinations(chosen, 2) if frozenset(pair) not in reached]
        if not missing:
            break
        # Among machines that miss equally many, drop the last in the pool's order.
        worst = max(reversed(chosen), key=lambda name: sum(name in pair for pair in missing))
        chosen.remove(worst)
    return chosen
