"""The figure by which the runs' models are compared, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core import words
from phalanx.observe.summary.summary import Summary

# The first of these figures that any run has is compared.
CANDIDATES = (
    "test_accuracy",
    "validation_accuracy",
    "test_loss",
    "validation_loss",
    "train_accuracy",
    "train_loss",
)


@dataclass(frozen=True)
class Quality:
    """A measure of a model: an accuracy (a share, more is better) or a loss (less is)."""

    field: str

    @property
    def name(self) -> str:
        return self.field.replace("_", " ")

    @property
    def is_share(self) -> bool:
        return self.field.endswith("accuracy")

    @property
    def higher_is_better(self) -> bool:
        return self.is_share

    def get(self, summary: Summary) -> float | None:
        value: float | None = getattr(summary, self.field)
        return value if value is not None and math.isfinite(value) else None

    def number(self, value: float) -> str:
        return words.share(value) if self.is_share else words.loss(value)

    def say(self, value: float) -> str:
        return f"{self.number(value)} {self.name}"

    def gap(self, value: float, other: float) -> str:
        """Return the difference to ``other`` in words: ``0.71 points more``, ``0.0123 lower``."""
        digits = 4  # as many as are shown, so that the shown values have this difference
        apart = abs(round(value, digits) - round(other, digits))
        if self.is_share:
            return f"{words.points(apart)} {'more' if value >= other else 'less'}"
        return f"{words.loss(apart)} {'lower' if value <= other else 'higher'}"


def quality_of(summaries: Sequence[Summary]) -> Quality:
    for field in CANDIDATES:
        if any(Quality(field).get(summary) is not None for summary in summaries):
            return Quality(field)
    return Quality(CANDIDATES[0])
