"""The rules of choice, and what they say about themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.words import seconds
from phalanx.plan.choice.evidence import Evidence, never
from phalanx.plan.choice.reasons import reasons_for
from phalanx.plan.choice.search import Approved, best_by_size, others
from phalanx.plan.choice.wishes import COST, TIME, Wishes
from phalanx.plan.cost.model import CostModel
from phalanx.plan.prediction import Interval, Prediction
from phalanx.pool.machine import Machine

LEAST_GAIN = 1.05
"""More machines have to be better by so much, at the lower end of what is expected."""
MOST_BASES = 4
"""Selections on which strategies that change the mathematics are tried."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, what else there is, and why."""

    chosen: Prediction
    ranked: list[Prediction]
    """The best of each number of machines, the best first."""
    unknown: list[Prediction]
    """Better than what was chosen, with an unknown effect on the accuracy."""
    reasons: list[str]


def choose_plan(
    model: CostModel,
    machines: Sequence[Machine],
    wishes: Wishes,
    evidence: Evidence | None = None,
) -> Choice:
    """The machines and the strategy for a job."""
    if not machines:
        raise InputError("the pool has no machine to plan for", "Add one to the blueprint.")
    if wishes.objective == COST and all(m.price_per_hour is None for m in machines):
        raise InputError(
            "--objective cost needs prices, and no machine has one",
            "Add price_per_hour to the machines of the blueprint.",
        )
    approved = evidence.approves(wishes.max_accuracy_loss) if evidence else never
    best = best_by_size(model, machines, wishes, approved)
    if not best:
        raise _impossible(model, machines, wishes, approved)
    chosen = decide(best, wishes)
    ranked = sorted(best.values(), key=lambda p: wishes.value(p).value)
    by_name = {m.name: m for m in machines}
    bases = [[by_name[n] for n in p.machines] for p in ranked if len(p.machines) > 1]
    found = others(model, bases[:MOST_BASES], wishes, approved)
    unknown = [p for p in found if least_gain(wishes.value(chosen), wishes.value(p)) > LEAST_GAIN]
    quickest = chosen
    if wishes.objective != TIME:
        quickest = decide(best_by_size(model, machines, Wishes(), approved), Wishes())
    return Choice(
        chosen=chosen,
        ranked=ranked,
        unknown=unknown,
        reasons=reasons_for(model, machines, wishes, chosen, quickest, best, unknown, evidence),
    )


def decide(best: Mapping[int, Prediction], wishes: Wishes) -> Prediction:
    """From few machines to many: more only where the lower end of the gain exceeds 5 %."""
    sizes = sorted(best)
    chosen = best[sizes[0]]
    for size in sizes[1:]:
        if least_gain(wishes.value(chosen), wishes.value(best[size])) > LEAST_GAIN:
            chosen = best[size]
    return chosen


def least_gain(before: Interval, after: Interval) -> float:
    """How many times better ``after`` is at least, if both are wrong independently."""
    if after.value <= 0.0:
        return LEAST_GAIN + 1.0 if before.value > 0.0 else 1.0
    if before.value <= 0.0:
        return 0.0
    error = hypot(before.high / before.value - 1.0, after.high / after.value - 1.0)
    return before.value / after.value / (1.0 + error)


def _impossible(
    model: CostModel, machines: Sequence[Machine], wishes: Wishes, approved: Approved
) -> InputError:
    """What was wished for cannot be had; what can."""
    quickest = min(
        best_by_size(model, machines, Wishes(), approved).values(), key=lambda p: p.seconds.value
    )
    if wishes.deadline is not None and quickest.seconds.value > wishes.deadline:
        best = f"{seconds(quickest.seconds.value)} ({quickest.strategy} on "
        return InputError(
            f"no plan meets the deadline of {seconds(wishes.deadline)}",
            f"The best possible is {best}{', '.join(quickest.machines)}).",
        )
    cheapest = min(
        best_by_size(model, machines, Wishes(COST), approved).values(),
        key=lambda p: p.price.value if p.price else 0.0,
    )
    price = cheapest.price.value if cheapest.price else 0.0
    where = f"{cheapest.strategy} on {', '.join(cheapest.machines)}"
    if wishes.budget is not None and price > wishes.budget:
        return InputError(
            f"no plan stays within the budget of {wishes.budget:g}",
            f"The cheapest costs {price:.3g} ({where}) and takes "
            f"{seconds(cheapest.seconds.value)}.",
        )
    return InputError(
        "no plan meets both the deadline and the budget",
        f"The quickest takes {seconds(quickest.seconds.value)}; the cheapest costs {price:.3g}.",
    )
