"""Why a plan was chosen, in words with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.core.words import seconds
from phalanx.plan.choice.evidence import LEAST_PAIRS, Evidence
from phalanx.plan.choice.wishes import ENERGY, TIME, Wishes, shown
from phalanx.plan.cost.model import CostModel
from phalanx.plan.prediction import Prediction
from phalanx.pool.machine import Machine

SLOWER_TO_TELL = 1.05


def reasons_for(
    model: CostModel,
    machines: Sequence[Machine],
    wishes: Wishes,
    chosen: Prediction,
    quickest: Prediction,
    best: Mapping[int, Prediction],
    unknown: Sequence[Prediction],
    evidence: Evidence | None,
) -> list[str]:
    return [
        *_distribution(wishes, chosen, best),
        *_left_out(machines, wishes, chosen, best),
        *_what_it_costs(wishes, chosen, quickest),
        *_limits(wishes, chosen),
        *_unknown(wishes, chosen, unknown, evidence),
        *_guesses(model, wishes, chosen, best),
    ]


def _distribution(wishes: Wishes, chosen: Prediction, best: Mapping[int, Prediction]) -> list[str]:
    alone = best.get(1)
    value = wishes.value(chosen).value
    if len(chosen.machines) > 1:
        words = f"{_names(chosen)} with {chosen.strategy}: {shown(wishes, value)}"
        if alone is None:
            return [f"{words}; one machine alone does not meet what was asked for"]
        single = wishes.value(alone).value
        return [
            f"{words} instead of {shown(wishes, single)} on {_names(alone)} alone"
            f" ({single / value:.2f} times better)" if value else words
        ]  # fmt: skip
    several = [p for size, p in best.items() if size > 1]
    if not several:
        return []
    other = min(several, key=lambda p: wishes.value(p).value)
    theirs = wishes.value(other).value
    times = f", {theirs / value:.2f} times as much" if value else ""
    word = "takes" if wishes.objective == TIME else "needs"
    return [
        f"do not distribute this: {_names(chosen)} alone {word} {shown(wishes, value)}; the best of"
        f" several machines ({_names(other)}, {other.strategy}) {shown(wishes, theirs)}{times},"
        f" limited by {other.limit}"
    ]


def _left_out(
    machines: Sequence[Machine],
    wishes: Wishes,
    chosen: Prediction,
    best: Mapping[int, Prediction],
) -> list[str]:
    """Machines that would be in the next larger selection."""
    if len(chosen.machines) < 2:
        return []
    out = [m.name for m in machines if m.name not in chosen.machines]
    larger = best.get(len(chosen.machines) + 1)
    if not out or larger is None:
        return []
    more = shown(wishes, wishes.value(larger).value)
    return [
        f"left out: {', '.join(out)}; the best with one machine more ({_names(larger)}) comes to"
        f" {more}, which is not certainly 5 % better"
    ]


def _what_it_costs(wishes: Wishes, chosen: Prediction, quickest: Prediction) -> list[str]:
    """Another objective than time is paid for in time."""
    times = chosen.seconds.value / quickest.seconds.value
    if wishes.objective == TIME or times < SLOWER_TO_TELL:
        return []
    own, other = wishes.value(chosen).value, wishes.value(quickest).value
    what = "energy" if wishes.objective == ENERGY else "price"
    return [
        f"the least {what}, {shown(wishes, own)} instead of {shown(wishes, other)}, costs time:"
        f" {seconds(chosen.seconds.value)} instead of {seconds(quickest.seconds.value)} on"
        f" {_names(quickest)} with {quickest.strategy} ({times:.2f} times as long)"
    ]


def _limits(wishes: Wishes, chosen: Prediction) -> list[str]:
    said = []
    if wishes.deadline is not None and chosen.seconds.high > wishes.deadline:
        said.append(
            f"the deadline may be missed: {seconds(chosen.seconds.low)} to"
            f" {seconds(chosen.seconds.high)} are expected"
        )
    return said


def _unknown(
    wishes: Wishes, chosen: Prediction, unknown: Sequence[Prediction], evidence: Evidence | None
) -> list[str]:
    if not unknown:
        return []
    first = unknown[0]
    better = wishes.value(chosen).value / max(wishes.value(first).value, 1e-12)
    word = "faster" if wishes.objective == TIME else "better"
    pairs = evidence.pairs_of(first.strategy, first.workers) if evidence else []
    if len(pairs) >= LEAST_PAIRS:
        mean = sum(pair.loss for pair in pairs) / len(pairs)
        return [
            f"{first.strategy} on {_names(first)} would be {better:.2f} times {word}, but"
            f" {len(pairs)} pairs of runs lost {100 * mean:.2f} points of accuracy"
        ]
    return [
        f"{first.strategy} on {_names(first)} would be {better:.2f} times {word}, accuracy unknown:"
        f" that takes {LEAST_PAIRS} pairs of runs with the same seeds, and there are {len(pairs)}"
    ]


def _guesses(
    model: CostModel, wishes: Wishes, chosen: Prediction, best: Mapping[int, Prediction]
) -> list[str]:
    said = []
    several = [p for p in best.values() if len(p.machines) > 1]
    if any(not model.network.measured(p.machines) for p in several):
        said.append(
            "links were not measured, 1 Gbit/s is assumed: phalanx pool probe narrows the intervals"
        )
    scaled = [n for n in chosen.machines if model.job.costs[n].work.extrapolated]
    if scaled:
        said.append(f"{', '.join(scaled)}: computing was scaled from another machine, not measured")
    if wishes.objective == ENERGY and chosen.energy_source == "estimate":
        said.append("energy is an estimate from cores and GPUs: give the machines' watts")
    return said


def _names(found: Prediction) -> str:
    names = found.machines
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
