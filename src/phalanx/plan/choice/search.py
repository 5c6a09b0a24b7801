"""The candidates: selections of machines, with floors that leave most of them out, × strategies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations

from phalanx.plan.choice.wishes import COST, ENERGY, Wishes
from phalanx.plan.cost.energy import watts_of
from phalanx.plan.cost.model import CostModel
from phalanx.plan.prediction import Prediction
from phalanx.pool.machine import Machine

MOST_SUBSETS = 8
"""Of more machines, only the quickest, the two quickest, … are looked at."""
OTHERS = ("async", "ssp:bound=3", "dssp", "localsgd:every=8")
CODECS = ("fp16", "int8", "topk:ratio=0.01")
GROUPED = "groups:by=speed"
LEAST_GROUPED = 4
JUDGED = 6
"""Candidates that the engine judges."""

Selection = tuple[Machine, ...]
Approved = Callable[[str, int], bool]
"""Whether there is evidence that a strategy keeps the accuracy, with so many workers."""


def selections(model: CostModel, machines: Sequence[Machine]) -> list[Selection]:
    """All of them, by number of machines; of a large pool those that are good for something."""
    if len(machines) <= MOST_SUBSETS:
        sizes = range(1, len(machines) + 1)
        return [found for size in sizes for found in combinations(machines, size)]
    orders: list[Callable[[Machine], float]] = [
        lambda m: _alone(model, m),
        lambda m: _alone(model, m) * watts_of(m, model.probe)[0],
        lambda m: _alone(model, m) * (m.price_per_hour or 0.0),
        lambda m: -min(model.network.sending(m.name), model.network.receiving(m.name)),
    ]
    places = {m.name: place for place, m in enumerate(machines)}
    found: dict[frozenset[str], Selection] = {}
    for order in orders:
        ranked = sorted(machines, key=order)
        for size in range(1, len(ranked) + 1):
            chosen = tuple(sorted(ranked[:size], key=lambda m: places[m.name]))
            found.setdefault(frozenset(m.name for m in chosen), chosen)
    return sorted(found.values(), key=len)


def _alone(model: CostModel, machine: Machine) -> float:
    costs = model.job.costs[machine.name]
    return costs.work.seconds(model.job.batch) + costs.input * model.job.batch


def best_by_size(
    model: CostModel, machines: Sequence[Machine], wishes: Wishes, approved: Approved
) -> dict[int, Prediction]:
    """For each number of machines the best that may be chosen; none where wishes refuse all."""
    groups: dict[int, list[tuple[float, int, Selection]]] = {}
    for place, chosen in enumerate(selections(model, machines)):
        floor = floor_of(model, chosen, wishes)
        groups.setdefault(len(chosen), []).append((floor, place, chosen))
    best: dict[int, Prediction] = {}
    for size, group in sorted(groups.items()):
        for floor, _, chosen in sorted(group):
            if size in best and floor >= wishes.value(best[size]).value:
                break
            for found in choosable(model, chosen, approved):
                known = best.get(size)
                if wishes.allows(found) and (
                    known is None or wishes.value(found).value < wishes.value(known).value
                ):
                    best[size] = found
    return best


def floor_of(model: CostModel, chosen: Selection, wishes: Wishes) -> float:
    """What no strategy of the same mathematics on these machines is below."""
    seconds = model.computing_floor(chosen)
    if wishes.objective == COST:
        return seconds / 3600 * sum(m.price_per_hour or 0.0 for m in chosen)
    if wishes.objective == ENERGY:
        busy = model.computing_by_machine(chosen)
        return sum(watts_of(m, model.probe)[0] * busy[m.name] for m in chosen)
    return seconds


def choosable(
    model: CostModel, chosen: Sequence[Machine], approved: Approved
) -> Iterator[Prediction]:
    """What may be chosen freely on these machines, and what there is evidence for."""
    if len(chosen) == 1:
        yield model.predict(chosen, "single")
    workers = model.workers_on(chosen)
    if workers == 1:
        return
    yield model.predict(chosen, "allreduce")
    if model.job.elementwise:
        yield model.predict(chosen, "bsp")
    for spec in other_specs(model, chosen):
        if approved(spec, workers):
            yield model.predict(chosen, spec)


def other_specs(model: CostModel, chosen: Sequence[Machine]) -> list[str]:
    """Strategies and codecs that change the mathematics, where they make sense."""
    workers = model.workers_on(chosen)
    if workers == 1:
        return []
    names = list(OTHERS) if model.job.elementwise else [OTHERS[-1]]
    if model.job.elementwise and workers >= LEAST_GROUPED:
        names.append(GROUPED)
    codecs = CODECS if len(chosen) > 1 else ()  # in memory a codec only costs time
    coded = [f"{name}+{codec}" for name in ("allreduce", *names) for codec in codecs]
    return names + coded


def others(
    model: CostModel, bases: Collection[Sequence[Machine]], wishes: Wishes, approved: Approved
) -> list[Prediction]:
    """The best few ways to train whose effect on accuracy is unknown; the engine judges them."""
    rough = [
        model.predict(chosen, spec, exact=False)
        for chosen in bases
        for spec in other_specs(model, chosen)
        if not approved(spec, model.workers_on(chosen))
    ]
    allowed = sorted(filter(wishes.allows, rough), key=lambda p: wishes.value(p).value)
    by_name = {m.name: m for chosen in bases for m in chosen}
    judged = [
        model.predict([by_name[name] for name in found.machines], found.strategy)
        for found in _few(allowed)
    ]
    return sorted(filter(wishes.allows, judged), key=lambda p: wishes.value(p).value)


def _few(ranked: Sequence[Prediction]) -> list[Prediction]:
    """The best ones, each strategy once, and the same steps with a codec: those change least."""
    once: dict[str, Prediction] = {}
    for found in ranked:
        once.setdefault(found.strategy, found)
    distinct = list(once.values())
    coded = [p for p in distinct[JUDGED:] if p.strategy.startswith("allreduce+")]
    return distinct[:JUDGED] + coded
