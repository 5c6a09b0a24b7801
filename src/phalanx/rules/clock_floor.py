"""The lowest of many clocks, for engines that own them all: without a look at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from phalanx.rules.admission import AWAY


class ClockFloor:
    """Counts how many clocks there are of each value.

    To advance and to enter takes the same time with any number of clocks; only when the last one at
    the floor leaves, all values in use are looked at, of which there are few.
    """

    def __init__(self, clocks: Iterable[int] = ()) -> None:
        self._count: dict[int, int] = Counter(clocks)
        self.floor = min(self._count, default=AWAY)
        """``AWAY`` where no clock is present."""

    def advance(self, old: int) -> None:
        """A clock goes from ``old`` to ``old + 1``."""
        self._count[old + 1] = self._count.get(old + 1, 0) + 1
        if self._remove(old) and old == self.floor:
            self.floor = old + 1

    def enter(self, clock: int) -> None:
        self._count[clock] = self._count.get(clock, 0) + 1
        self.floor = min(self.floor, clock)

    def leave(self, clock: int) -> None:
        if self._remove(clock) and clock == self.floor:
            self.floor = min(self._count, default=AWAY)

    def _remove(self, clock: int) -> bool:
        """Whether it was the last of this value."""
        left = self._count[clock] - 1
        if left:
            self._count[clock] = left
        else:
            del self._count[clock]
        return not left
