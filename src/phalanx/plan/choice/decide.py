"""The rules that choose a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.words import seconds
from phalanx.plan.choice.evidence import Losses, keeps_accuracy
from phalanx.plan.choice.objectives import COST, Objectives
from phalanx.plan.choice.reasons import Reasons
from phalanx.plan.choice.search import best_by_size, choosable, others, selections
from phalanx.plan.cost.model import CostModel
from phalanx.plan.prediction import Interval, Prediction
from phalanx.pool.machine import Machine

LEAST_GAIN = 1.05
"""The factor by which more machines must at least be better, at the low end of the interval."""
MOST_BASES = 4
"""The most selections on which strategies that change the mathematics are tried."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen plan, its alternatives, and the reasons."""

    chosen: Prediction
    ranked: list[Prediction]
    """The best of each number of machines, the best first."""
    unknown: list[Prediction]
    """Better than the chosen one, but with an unknown effect on the accuracy."""
    reasons: list[str]


def choose_plan(
    model: CostModel,
    machines: Sequence[Machine],
    goal: Objectives,
    losses: Losses | None = None,
) -> Choice:
    """Choose the machines and the strategy for a job."""
    if not machines:
        raise InputError("the pool has no machine to plan for", "Add one to the blueprint.")
    unpriced = [machine.name for machine in machines if machine.price_per_hour is None]
    if unpriced and (goal.objective == COST or goal.budget is not None):
        needs = "--objective cost" if goal.objective == COST else "--budget"
        raise InputError(
            f"{needs} needs prices, and there is none for {', '.join(unpriced)}",
            "Set price_per_hour in the blueprint (0: free), or leave them out with --machines.",
        )
    losses = losses or {}

    def approved(strategy: str, workers: int) -> bool:
        found = losses.get((strategy, workers), {})
        return keeps_accuracy(found.values(), goal.max_accuracy_loss)

    found = [p for s in selections(model, machines) for p in choosable(model, s, approved)]
    best = best_by_size(found, goal)
    if not best:
        raise _impossible(found, goal)
    chosen = decide(best, goal)
    ranked = sorted(best.values(), key=lambda p: goal.value(p).value)
    bases = [[m for m in machines if m.name in p.machines] for p in ranked if p.workers > 1]
    unknown = [
        p
        for p in others(model, bases[:MOST_BASES], goal, approved)
        if least_gain(goal.value(chosen), goal.value(p)) > LEAST_GAIN
    ]
    quickest = decide(best_by_size(found, Objectives()), Objectives())
    names = [machine.name for machine in machines]
    reasons = Reasons(model, names, goal, chosen, quickest, best, unknown, losses).all()
    return Choice(chosen=chosen, ranked=ranked, unknown=unknown, reasons=reasons)


def decide(best: Mapping[int, Prediction], goal: Objectives) -> Prediction:
    """Choose the number of machines; more only if the lower end of the gain exceeds 5 %."""
    first, *larger = (best[size] for size in sorted(best))
    chosen = first
    for found in larger:
        if least_gain(goal.value(chosen), goal.value(found)) > LEAST_GAIN:
            chosen = found
    return chosen


def least_gain(before: Interval, after: Interval) -> float:
    """Return how many times better ``after`` is at least, if the errors of both are independent."""
    if after.value <= 0.0:
        return LEAST_GAIN + 1.0 if before.value > 0.0 else 1.0
    if before.value <= 0.0:
        return 0.0
    error = hypot(before.high / before.value - 1.0, after.high / after.value - 1.0)
    return before.value / after.value / (1.0 + error)


def _impossible(found: Sequence[Prediction], goal: Objectives) -> InputError:
    """Return the error if no plan meets the deadline or budget, with the best possible figures."""
    quickest = min(found, key=lambda p: p.seconds.value)
    cheapest = min(found, key=lambda p: p.price.value if p.price else 0.0)
    time, price = quickest.seconds.value, cheapest.price.value if cheapest.price else 0.0
    if goal.deadline is not None and time > goal.deadline:
        return InputError(
            f"no plan meets the deadline of {seconds(goal.deadline)}",
            f"The shortest possible is {seconds(time)} ({quickest.strategy} on "
            f"{', '.join(quickest.machines)}).",
        )
    if goal.budget is not None and price > goal.budget:
        return InputError(
            f"no plan stays within the budget of {goal.budget:g}",
            f"The cheapest costs {price:.3g} ({cheapest.strategy} on "
            f"{', '.join(cheapest.machines)}) and takes {seconds(cheapest.seconds.value)}.",
        )
    return InputError(
        "no plan meets both the deadline and the budget",
        f"The quickest takes {seconds(time)}; the cheapest costs {price:.3g}.",
    )
