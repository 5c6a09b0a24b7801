"""Why a plan was chosen, in words with numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from phalanx.core.words import seconds
from phalanx.plan.choice.evidence import LEAST_PAIRS, Losses, why_auto_switch
from phalanx.plan.choice.objectives import ENERGY, TIME, Objectives
from phalanx.plan.cost.model import CostModel
from phalanx.plan.prediction import Prediction

SLOWER_TO_TELL = 1.05


@dataclass(frozen=True)
class Reasons:
    model: CostModel
    machines: Sequence[str]
    goal: Objectives
    chosen: Prediction
    quickest: Prediction
    best: Mapping[int, Prediction]
    """The best prediction by number of machines."""
    unknown: Sequence[Prediction]
    losses: Losses

    def all(self) -> list[str]:
        distribution = self._several() if len(self.chosen.machines) > 1 else self._alone()
        rest = (
            self._fewer(),
            self._price_in_time(),
            self._unknown(),
            self._switch(),
            self._guesses(),
        )
        return [*distribution, *(reason for reasons in rest for reason in reasons)]

    def _value(self, found: Prediction) -> float:
        return self.goal.value(found).value

    def _shown(self, found: Prediction) -> str:
        return self.goal.shown(self._value(found))

    def _several(self) -> Iterator[str]:
        chosen, alone = self.chosen, self.best.get(1)
        words = f"{_names(chosen)} with {chosen.strategy}: {self._shown(chosen)}"
        if alone is None:
            yield f"{words}; no single machine meets the deadline or budget"
        else:
            times = self._value(alone) / max(self._value(chosen), 1e-12)
            yield (
                f"{words} instead of {self._shown(alone)} on {_names(alone)} alone"
                f" ({times:.2f} times better)"
            )
        out = [name for name in self.machines if name not in chosen.machines]
        larger = self.best.get(len(chosen.machines) + 1)
        if out and larger is not None:
            yield (
                f"left out: {', '.join(out)}; the best with one machine more ({_names(larger)})"
                f" comes to {self._shown(larger)}, which is not certain to be 5 % better"
            )

    def _alone(self) -> Iterator[str]:
        several = [found for size, found in self.best.items() if size > 1]
        if several:
            other, value = min(several, key=self._value), self._value(self.chosen)
            times = f", {self._value(other) / value:.2f} times as much" if value else ""
            if self._value(other) < value:
                times += " and not certain to be 5 % better"
            word = "takes" if self.goal.objective == TIME else "needs"
            yield (
                f"do not distribute this: {_names(self.chosen)} alone {word}"
                f" {self._shown(self.chosen)}; the best of several machines ({_names(other)},"
                f" {other.strategy}) {word} {self._shown(other)}{times}, limited by {other.limit}"
            )

    def _fewer(self) -> Iterator[str]:
        """Say if fewer workers are used than ``--workers`` asked for."""
        asked, used = self.model.asked_workers, self.chosen.workers
        if asked is not None and used < asked:
            yield (
                f"only {used} of {asked} workers are used: more are not certain to be 5 % better;"
                " --strategy allreduce starts all of them"
            )

    def _price_in_time(self) -> Iterator[str]:
        """Say how much time another objective costs, and if the deadline may be missed."""
        took, quickest = self.chosen.seconds, self.quickest
        times = took.value / quickest.seconds.value
        if self.goal.objective != TIME and times >= SLOWER_TO_TELL:
            what = "energy" if self.goal.objective == ENERGY else "price"
            yield (
                f"the least {what}, {self._shown(self.chosen)} instead of {self._shown(quickest)},"
                f" costs time: {seconds(took.value)} instead of {seconds(quickest.seconds.value)}"
                f" on {_names(quickest)} with {quickest.strategy} ({times:.2f} times as long)"
            )
        if self.goal.deadline is not None and took.high > self.goal.deadline:
            expected = f"{seconds(took.low)} to {seconds(took.high)}"
            yield f"the deadline may be missed: {expected} are expected"

    def _unknown(self) -> Iterator[str]:
        for first in self.unknown[:1]:
            better = self._value(self.chosen) / max(self._value(first), 1e-12)
            word = "faster" if self.goal.objective == TIME else "better"
            words = f"{first.strategy} on {_names(first)} would be {better:.2f} times {word}"
            losses = self.losses.get((first.strategy, first.workers), {}).values()
            if len(losses) >= LEAST_PAIRS:
                mean = 100 * fmean(losses)
                yield f"{words}, but {len(losses)} pairs of runs lost {mean:.2f} points of accuracy"
            else:
                yield (
                    f"{words}, accuracy unknown: there are {len(losses)} of the {LEAST_PAIRS} pairs"
                    " of runs with the same seeds that are needed to judge it"
                )

    def _switch(self) -> Iterator[str]:
        if self.chosen.workers > 1 and self.model.job.elementwise:
            yield why_auto_switch(self.losses, self.chosen.workers)

    def _guesses(self) -> Iterator[str]:
        if not all(self.model.network.measured(found.machines) for found in self.best.values()):
            yield (
                "links were not measured, so 1 Gbit/s is assumed; phalanx pool probe measures"
                " them and narrows the intervals"
            )
        costs = self.model.job.costs
        scaled = [name for name in self.chosen.machines if costs[name].work.extrapolated]
        if scaled:
            yield f"{', '.join(scaled)}: computing was scaled from another machine, not measured"
        if self.goal.objective == ENERGY and self.chosen.energy_source == "estimate":
            yield "energy is estimated from cores and GPUs: set watts in the blueprint"


def _names(found: Prediction) -> str:
    *others, last = found.machines
    return f"{', '.join(others)} and {last}" if others else last
