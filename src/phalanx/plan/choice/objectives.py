"""The user's goal for a run: what to minimise, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.words import seconds
from phalanx.plan.prediction import Interval, Prediction

TIME, ENERGY, COST = "time", "energy", "cost"
OBJECTIVES = (TIME, ENERGY, COST)


@dataclass(frozen=True)
class Objectives:
    objective: str = TIME
    deadline: float | None = None
    """The most seconds that the whole run may take."""
    budget: float | None = None
    """The most money that the run may cost, in the currency of ``price_per_hour``."""
    max_accuracy_loss: float = 0.0
    """Accuracy (from 0 to 1) that may be lost by strategies that change the mathematics."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            remedy = did_you_mean(self.objective, OBJECTIVES)
            raise InputError(f"unknown objective '{self.objective}'", remedy)

    def value(self, found: Prediction) -> Interval:
        """The predicted figure that this objective minimises."""
        if self.objective == ENERGY and found.joules is not None:
            return found.joules
        if self.objective == COST:
            return found.price or Interval(0.0, 0.0, 0.0)
        return found.seconds

    def allows(self, found: Prediction) -> bool:
        if self.deadline is not None and found.seconds.value > self.deadline:
            return False
        price = found.price.value if found.price else 0.0
        return self.budget is None or price <= self.budget

    def shown(self, value: float) -> str:
        """A value of the objective, with its unit."""
        if self.objective == ENERGY:
            return joules(value)
        return f"{value:.3g}" if self.objective == COST else seconds(value)


def joules(value: float) -> str:
    """Energy in words, such as ``3.2 kJ``."""
    for unit, size in (("MJ", 1e6), ("kJ", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} J"
