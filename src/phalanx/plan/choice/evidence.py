"""What past runs say: whether a strategy keeps the accuracy, and how far predictions were off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from phalanx.plan.choice.search import Approved

LEAST_PAIRS = 3
SHRINKING = 3.0
"""So many runs have to agree before half of what they say is believed."""
MOST_FACTOR = 3.0
"""A run that took longer than this many times its prediction met something else."""


@dataclass(frozen=True)
class Pair:
    """Two runs of one script on the same data with the same seed."""

    strategy: str
    workers: int
    seed: int
    baseline: float
    """The accuracy with the same mathematics,"""
    value: float
    """and with the strategy."""

    @property
    def loss(self) -> float:
        return self.baseline - self.value


@dataclass(frozen=True)
class Evidence:
    pairs: tuple[Pair, ...] = ()

    def pairs_of(self, strategy: str, workers: int) -> list[Pair]:
        """One for each seed: the newest."""
        found = {p.seed: p for p in self.pairs if (p.strategy, p.workers) == (strategy, workers)}
        return list(found.values())

    def approves(self, max_loss: float) -> Approved:
        def approved(strategy: str, workers: int) -> bool:
            pairs = self.pairs_of(strategy, workers)
            # Accuracies are shares of a test set: half a rounding error must not decide.
            return len(pairs) >= LEAST_PAIRS and fmean(p.loss for p in pairs) <= max_loss + 1e-9

        return approved


def never(strategy: str, workers: int) -> bool:
    return False


@dataclass(frozen=True)
class PredictedRun:
    """A run that was predicted."""

    machines: tuple[str, ...]
    strategy: str
    """Its name, without options."""
    ratio: float
    """Seconds of a step by those that were predicted without any factor."""


def learn_factors(outcomes: Iterable[PredictedRun]) -> Mapping[tuple[str, str], float]:
    """By machine and strategy, shrunken towards 1: n runs count as n / (n + 3) of what they say."""
    found: dict[tuple[str, str], list[float]] = {}
    for outcome in outcomes:
        if 1 / MOST_FACTOR <= outcome.ratio <= MOST_FACTOR:
            for machine in outcome.machines:
                found.setdefault((machine, outcome.strategy), []).append(log(outcome.ratio))
    return {
        key: exp(fmean(logs) * len(logs) / (len(logs) + SHRINKING)) for key, logs in found.items()
    }
