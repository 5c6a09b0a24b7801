"""What past runs say: whether a strategy keeps the accuracy, and how far predictions were off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import fmean

LEAST_PAIRS = 3
SHRINKING = 3.0
"""So many runs have to agree before half of what they say is believed."""
MOST_FACTOR = 3.0
"""A run that took longer than this many times its prediction met something else."""

Losses = Mapping[tuple[str, int], Mapping[int, float]]
"""Of accuracy, by strategy and workers, then by seed: of pairs of runs of one script on the same
data with the same seed, one of them with the same mathematics as one process."""


def keeps_accuracy(losses: Iterable[float], max_loss: float) -> bool:
    found = list(losses)
    # Accuracies are shares of a test set: half a rounding error must not decide.
    return len(found) >= LEAST_PAIRS and fmean(found) <= max_loss + 1e-9


def learn_factors(
    outcomes: Iterable[tuple[Sequence[str], str, float]],
) -> Mapping[tuple[str, str], float]:
    """By machine and strategy, shrunken towards 1: n runs count as n / (n + 3) of what they say.

    ``outcomes``: machines, strategy without options, and the seconds of a step by those that were
    predicted without any factor.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for machines, strategy, ratio in outcomes:
        if 1 / MOST_FACTOR <= ratio <= MOST_FACTOR:
            for machine in machines:
                found.setdefault((machine, strategy), []).append(log(ratio))
    return {key: exp(sum(logs) / (len(logs) + SHRINKING)) for key, logs in found.items()}
