"""Where to switch: a search over repeated runs, as a pure state machine.

After the offline policy of Li et al., "Sync-Switch: Hybrid Parameter Synchronization for
Distributed Deep Learning" (ICDCS 2021): a binary search for the earliest point whose quality is
that of synchronous training. It takes for granted that a later switch is never worse.

Points are parts of the grid: ``k`` switches at ``k / grid`` of the training, 0 is never
synchronous, ``grid`` is synchronous to the end, which is the baseline itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

BASELINE, SEARCH, CONFIRM = "baseline", "search", "confirm"
LOST_AFTER = 3.0
"""How many tolerances behind the baseline a run is given up."""


@dataclass(frozen=True)
class Rules:
    """What is searched for. ``tolerance`` is in the metric's own unit."""

    tolerance: float
    grid: int = 10
    seeds: int = 1
    confirm: int = 3
    smaller_is_better: bool = False

    def behind(self, baseline: float, value: float) -> float:
        """By how much ``value`` is worse."""
        return value - baseline if self.smaller_is_better else baseline - value

    @property
    def most_candidates(self) -> int:
        return math.ceil(math.log2(self.grid + 1))

    @property
    def most_runs(self) -> int:
        return self.seeds * (1 + self.most_candidates) + 2 * self.confirm

    @property
    def runs_of_the_grid(self) -> int:
        """What trying every point would take."""
        return self.seeds * (1 + self.grid)


@dataclass(frozen=True)
class SwitchTrial:
    """One run that is wanted; ``seed`` counts from 0."""

    stage: str
    point: int
    seed: int


@dataclass(frozen=True)
class SwitchVerdict:
    """What the search came to, as far as it came."""

    point: int | None = None
    """The earliest point that holds; the grid itself when none does; ``None``: not known yet."""
    behind: float | None = None
    """How far behind the baseline it is, on average over the seeds of the search."""
    confirmed: bool | None = None
    """Whether fresh seeds agree; ``None`` when none were asked, or not all are there."""
    confirmed_behind: float | None = None


class SwitchSearch:
    """Ask for the :meth:`next` trial, tell what came of it with :meth:`take`, until there is none.

    First the baseline, once per seed; then candidates by bisection, each with the same seeds and
    given up at its first lost run; then baseline and candidate side by side with fresh seeds.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._values: dict[tuple[int, int], float | None] = {}

    def take(self, trial: SwitchTrial, value: float | None) -> None:
        """``value`` is ``None`` for a run that was lost: ended early, or without a number."""
        self._values[trial.point, trial.seed] = value

    def next(self) -> SwitchTrial | None:
        rules = self.rules
        search = range(rules.seeds)
        fresh = range(rules.seeds, rules.seeds + rules.confirm)
        if (trial := self._missing(BASELINE, [rules.grid], search)) is not None:
            return trial
        low, high = self._bounds()
        if low < high:
            return self._missing(SEARCH, [(low + high) // 2], search)
        if high == rules.grid:
            return None
        return self._missing(CONFIRM, [rules.grid, high], fresh)

    def verdict(self) -> SwitchVerdict:
        rules = self.rules
        low, high = self._bounds()
        if low < high or self._missing(BASELINE, [rules.grid], range(rules.seeds)):
            return SwitchVerdict()
        if high == rules.grid:
            return SwitchVerdict(high, 0.0)
        fresh = range(rules.seeds, rules.seeds + rules.confirm)
        behind = self.behind(high, range(rules.seeds))
        if not fresh or self._missing(CONFIRM, [rules.grid, high], fresh):
            return SwitchVerdict(high, behind)
        again = self.behind(high, fresh)
        return SwitchVerdict(high, behind, again is not None and self._holds(again), again)

    def behind(self, point: int, seeds: Sequence[int]) -> float | None:
        """How far behind the baseline ``point`` is, on average; ``None`` if a run was lost."""
        pairs = [(self._values[self.rules.grid, s], self._values[point, s]) for s in seeds]
        known = [(base, value) for base, value in pairs if base is not None and value is not None]
        if len(known) < len(pairs):
            return None
        return fmean(self.rules.behind(base, value) for base, value in known)

    def _bounds(self) -> tuple[int, int]:
        """The earliest point that holds is one of low to high; high is known to hold."""
        low, high = 0, self.rules.grid
        while low < high:
            middle = (low + high) // 2
            good = self._is_good(middle)
            if good is None:
                break
            low, high = (low, middle) if good else (middle + 1, high)
        return low, high

    def _is_good(self, point: int) -> bool | None:
        """Whether ``point`` holds; ``None`` while that is not known."""
        seeds = range(self.rules.seeds)
        values = [self._values.get((point, seed), math.nan) for seed in seeds]
        if None in values:
            return False
        if any((point, seed) not in self._values for seed in seeds):
            return None
        behind = self.behind(point, seeds)
        return behind is not None and self._holds(behind)

    def _holds(self, behind: float) -> bool:
        # Accuracies are shares of a test set: half a rounding error must not decide.
        return behind <= self.rules.tolerance + 1e-9

    def _missing(
        self, stage: str, points: Sequence[int], seeds: Sequence[int]
    ) -> SwitchTrial | None:
        wanted = (SwitchTrial(stage, point, seed) for seed in seeds for point in points)
        return next((t for t in wanted if (t.point, t.seed) not in self._values), None)


def is_lost(
    values: Mapping[int, float | None],
    baselines: Sequence[Mapping[int, float]],
    epochs: int,
    rules: Rules,
) -> bool:
    """Whether a candidate, by its ``values`` per epoch so far, is clearly lost.

    It is when its newest value is not a number; or when, in the last third of the epochs, it is
    behind the baselines' mean of the same epoch by more than three tolerances and more than the
    baselines' own spread (between seeds, or of a single one from epoch to epoch). After the last
    epoch there is nothing left to save.
    """
    epoch = max(values, default=epochs)
    if epoch + 1 >= epochs:
        return False
    value = values[epoch]
    if value is None or not math.isfinite(value):
        return True
    there = [baseline[epoch] for baseline in baselines if epoch in baseline]
    if not there or not _in_last_third(epoch, epochs):
        return False
    limit = max(LOST_AFTER * rules.tolerance, _spread(epoch, baselines, epochs))
    return rules.behind(fmean(there), value) > limit


def _spread(epoch: int, baselines: Sequence[Mapping[int, float]], epochs: int) -> float:
    there = [baseline for baseline in baselines if epoch in baseline]
    if len(there) > 1:
        values = [baseline[epoch] for baseline in there]
        return max(values) - min(values)
    (only,) = there
    changes = [
        abs(only[epoch] - only[epoch - 1])
        for epoch in only
        if epoch - 1 in only and _in_last_third(epoch, epochs)
    ]
    return max(changes, default=0.0)


def _in_last_third(epoch: int, epochs: int) -> bool:
    return 3 * (epoch + 1) > 2 * epochs
