"""What past runs say: whether a strategy keeps the accuracy, and how far predictions were off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

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
    loss: float
    """Of accuracy, against the same mathematics."""


@dataclass(frozen=True)
class Evidence:
    pairs: tuple[Pair, ...] = ()

    def losses(self, strategy: str, workers: int) -> list[float]:
        """One for each seed: the newest."""
        ours = [p for p in self.pairs if (p.strategy, p.workers) == (strategy, workers)]
        return list({p.seed: p.loss for p in ours}.values())

    def approves(self, strategy: str, workers: int, max_loss: float) -> bool:
        losses = self.losses(strategy, workers)
        # Accuracies are shares of a test set: half a rounding error must not decide.
        return len(losses) >= LEAST_PAIRS and fmean(losses) <= max_loss + 1e-9


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
    return {key: exp(sum(logs) / (len(logs) + SHRINKING)) for key, logs in found.items()}
