"""Charts of what is known once an epoch: accuracies, the script's own figures, the rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from phalanx.observe.summary.history import OWN_FIELDS
from phalanx.watch.feed.chart_types import Axis, Chart, Series

MOST_NAMES = 24
_LONGEST_NAME = 80
_TRAINED = ("train_loss",)
"""Drawn from the steps already."""

Row = Mapping[str, float | int | None]


def epoch_charts(
    rows: Sequence[Row], places: Sequence[float | None], axis: Axis, points: int
) -> list[Chart]:
    """Return the charts of finished epochs; ``places``: where each row lies on the axis."""
    kept = [(x, row) for x, row in zip(places, rows, strict=True) if x is not None]
    every = max(1, math.ceil(len(kept) / max(1, points)))
    kept = kept[::-every][::-1]  # the newest is always there
    if not kept:
        return []
    names = list(dict.fromkeys(name for _, row in kept for name in row))
    figures = [name for name in names if name not in OWN_FIELDS and name not in _TRAINED]
    accuracies = [name for name in figures if name.endswith("accuracy")]
    losses = [name for name in figures if name.endswith("loss")]
    others = [name for name in figures if name not in accuracies and name not in losses]
    found = (
        ("evaluation", "Accuracy", "share", accuracies),
        ("evaluation_loss", "Loss of evaluations", "", losses),
        ("metrics", "Figures of the script", "", others[:MOST_NAMES]),
        ("rate", "Learning rate", "", ["rate"]),
        ("gradient_norm", "Gradient norm", "", ["gradient_norm"]),
    )
    return [chart for one in found if (chart := _chart(kept, axis, *one)) is not None]


def _chart(
    kept: Sequence[tuple[float, Row]],
    axis: Axis,
    name: str,
    title: str,
    unit: str,
    names: list[str],
) -> Chart | None:
    columns = {one: [_finite(row.get(one)) for _, row in kept] for one in names}
    series = [
        Series(one.replace("_", " ")[:_LONGEST_NAME], values)
        for one, values in columns.items()
        if any(value is not None for value in values)
    ]
    if not series:
        return None
    xs = [x for x, _ in kept]
    return Chart(name, title, unit, axis, xs, series, log=name != "evaluation")


def _finite(value: object) -> float | None:
    known = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if known and isinstance(value, int | float) else None
