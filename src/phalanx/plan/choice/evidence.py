"""Evidence of past runs: whether a strategy keeps the accuracy, and the errors of predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import fmean

from phalanx.core.spec import AUTO_SWITCH

LEAST_PAIRS = 3
SHRINKING = 3.0
"""The number of runs at which half of their mean deviation is applied."""
SWITCH, MIDDLE_SWITCH = "switch:at=", "switch:at=0.5"
SWITCH_LOSS = 0.003
"""Accuracy that a switch may cost, on average."""
MOST_FACTOR = 3.0
"""Runs whose time differs from the prediction by a larger factor are ignored."""

Losses = Mapping[tuple[str, int], Mapping[int, float]]
"""Losses of accuracy by strategy and workers, then by seed. Each compares two runs of one script on
the same data with the same seed, one of which computes as one process would."""


def keeps_accuracy(losses: Iterable[float], max_loss: float) -> bool:
    found = list(losses)
    # Accuracies are shares of a test set: half a rounding error must not decide.
    return len(found) >= LEAST_PAIRS and fmean(found) <= max_loss + 1e-9


def earliest_switch(losses: Losses, workers: int) -> str | None:
    """Return the earliest ``switch:at=…`` of so many workers that keeps the accuracy."""
    kept = [
        spec
        for (spec, count), found in losses.items()
        if spec.startswith(SWITCH) and spec != AUTO_SWITCH and count == workers
        if keeps_accuracy(found.values(), SWITCH_LOSS)
    ]
    return min(kept, key=lambda spec: float(spec.removeprefix(SWITCH)), default=None)


def why_auto_switch(losses: Losses, workers: int) -> str:
    """Say which switch ``switch:at=auto`` is, and why."""
    if (found := earliest_switch(losses, workers)) is None:
        return (
            f"switch:at=auto is {MIDDLE_SWITCH}: no {LEAST_PAIRS} pairs of past runs with the same"
            f" seeds show a switch with {workers} workers that keeps the accuracy. To try some:"
            f" phalanx compare --strategies allreduce,switch:at=0.25,{MIDDLE_SWITCH}"
            f" --repeat {LEAST_PAIRS}"
        )
    mean = 100 * fmean(losses[found, workers].values())
    return (
        f"switch:at=auto is {found}, the earliest that keeps the accuracy:"
        f" {mean:.2f} points lost on average in {len(losses[found, workers])} pairs of runs"
    )


def learn_factors(
    outcomes: Iterable[tuple[Sequence[str], str, float]],
) -> Mapping[tuple[str, str], float]:
    """Learn factors by machine and strategy, shrunken towards 1: n runs count n / (n + 3).

    ``outcomes``: machines, strategy without options, and a step's measured seconds divided by
    those predicted without any factor.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for machines, strategy, ratio in outcomes:
        if 1 / MOST_FACTOR <= ratio <= MOST_FACTOR:
            for machine in machines:
                found.setdefault((machine, strategy), []).append(log(ratio))
    return {key: exp(sum(logs) / (len(logs) + SHRINKING)) for key, logs in found.items()}
