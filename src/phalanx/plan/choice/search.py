"""The candidates: selections of machines × strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from phalanx.plan.choice.evidence import MIDDLE_SWITCH
from phalanx.plan.choice.objectives import Objectives
from phalanx.plan.cost.energy import watts_of
from phalanx.plan.cost.model import CostModel
from phalanx.plan.prediction import Prediction
from phalanx.pool.machine import Machine

MOST_SUBSETS = 8
"""The most machines of which every subset is tried; of more, only the best 1, 2, 3, …"""
OTHERS = ("async", "ssp:bound=3", "dssp", MIDDLE_SWITCH, "localsgd:every=8")
CODECS = ("fp16", "int8", "topk:ratio=0.01")
GROUPED = "groups:by=speed"
LEAST_GROUPED = 4
JUDGED = 6
"""How many candidates of unknown accuracy are predicted exactly."""

Selection = tuple[Machine, ...]
Approved = Callable[[str, int], bool]
"""Whether there is evidence that a strategy keeps the accuracy with so many workers."""


def selections(model: CostModel, machines: Sequence[Machine]) -> list[Selection]:
    """All subsets, by size; of a large pool the best by speed, energy, price and links."""
    sizes = range(1, len(machines) + 1)
    if len(machines) <= MOST_SUBSETS:
        return [found for size in sizes for found in combinations(machines, size)]
    orders: list[Callable[[Machine], float]] = [
        model.seconds_alone,
        lambda m: model.seconds_alone(m) * watts_of(m, model.probe)[0],
        lambda m: model.seconds_alone(m) * (m.price_per_hour or 0.0),
        lambda m: -model.network.rate(m.name),
    ]
    best = [{m.name for m in sorted(machines, key=o)[:size]} for size in sizes for o in orders]
    chosen = (tuple(m for m in machines if m.name in names) for names in best)
    return list({tuple(m.name for m in found): found for found in chosen}.values())


def choosable(
    model: CostModel, chosen: Sequence[Machine], approved: Approved
) -> Iterable[Prediction]:
    """Yield predictions that may be chosen on these machines: of exact and approved strategies."""
    if len(chosen) == 1:
        yield model.predict(chosen, "single")
    workers = model.workers_on(chosen)
    if workers == 1 or workers > model.job.batch:
        return
    yield (plain := model.predict(chosen, "allreduce"))
    if model.job.elementwise:
        yield model.predict(chosen, "bsp")
    for spec in other_specs(model, chosen):
        # A strategy that is slower by the rough prediction needs no exact one.
        if approved(spec, workers) and (
            model.predict(chosen, spec, exact=False).seconds.value < plain.seconds.value
        ):
            yield model.predict(chosen, spec)


def best_by_size(found: Iterable[Prediction], goal: Objectives) -> dict[int, Prediction]:
    """Return the best allowed prediction for each number of machines, if there is one."""
    best: dict[int, Prediction] = {}
    for each in filter(goal.allows, found):
        known = best.setdefault(len(each.machines), each)
        if goal.value(each).value < goal.value(known).value:
            best[len(each.machines)] = each
    return best


def other_specs(model: CostModel, chosen: Sequence[Machine]) -> list[str]:
    """Return strategies and codecs that change the mathematics, if they suit these machines."""
    workers = model.workers_on(chosen)
    if workers == 1:
        return []
    names = list(OTHERS) if model.job.elementwise else [OTHERS[-1]]
    if model.job.elementwise and workers >= LEAST_GROUPED:
        names.append(GROUPED)
    codecs = CODECS if len(chosen) > 1 else ()  # in memory a codec only costs time
    coded = [name for name in ("allreduce", *names) if name != MIDDLE_SWITCH]
    return names + [f"{name}+{codec}" for name in coded for codec in codecs]


def others(
    model: CostModel, bases: Sequence[Sequence[Machine]], goal: Objectives, approved: Approved
) -> list[Prediction]:
    """Return the best few predictions with an unknown effect on accuracy, by exact simulation."""
    rough = [
        (model.predict(chosen, spec, exact=False), chosen)
        for chosen in bases
        for spec in other_specs(model, chosen)
        if not approved(spec, model.workers_on(chosen))
    ]
    once: dict[str, Sequence[Machine]] = {}
    for found, chosen in sorted(rough, key=lambda pair: goal.value(pair[0]).value):
        if goal.allows(found):
            once.setdefault(found.strategy, chosen)
    # Keep the best, and those that change the steps least: codecs, and a switch half-way.
    judged = [
        model.predict(chosen, strategy)
        for place, (strategy, chosen) in enumerate(once.items())
        if place < JUDGED or strategy.startswith("allreduce+") or strategy == MIDDLE_SWITCH
    ]
    return sorted(filter(goal.allows, judged), key=lambda p: goal.value(p).value)
