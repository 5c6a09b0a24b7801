"""Runs side by side: a series of each run in every chart, and their figures in a table."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from phalanx.watch.feed.chart_types import Chart, Series
from phalanx.watch.feed.runs_list import RunRow

CHARTS = ("loss", "evaluation", "evaluation_loss", "throughput", "rate", "gradient_norm")
_PREFERRED = ("test accuracy", "validation accuracy", "train accuracy", "total", "all")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a text that begins so for a formula."""


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    charts: list[Chart]
    rows: list[RunRow]


def make_comparison(charts: Sequence[Sequence[Chart]], rows: list[RunRow]) -> RunComparison:
    """Put the charts of several runs together; ``rows``: the runs, in the same order."""
    names = [row.name for row in rows]
    told = [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]
    own = [
        (name, run, chart)
        for name in CHARTS
        for run, found in zip(told, charts, strict=True)
        for chart in found
        if chart.name == name
    ]
    groups = itertools.groupby(own, key=lambda one: one[0])
    together = [_together([(run, chart) for _, run, chart in group]) for _, group in groups]
    return RunComparison(charts=together, rows=rows)


def _together(runs: Sequence[tuple[str, Chart]]) -> Chart:
    xs = sorted({x for _, chart in runs for x in chart.x_values})
    series = [Series(run, _at(xs, chart)) for run, chart in runs]
    return msgspec.structs.replace(runs[0][1], x_values=xs, series=series)


def _at(xs: Sequence[float], chart: Chart) -> list[float | None]:
    """Return the line of the whole run at the moments ``xs``; nothing before and after it."""
    by_name = {series.name: series for series in reversed(chart.series)}
    told = next((by_name[name] for name in _PREFERRED if name in by_name), None)
    values = (told or chart.series[0]).values if chart.series else []
    known = [(x, v) for x, v in zip(chart.x_values, values, strict=False) if v is not None]
    if not known:
        return [None] * len(xs)
    places, heights = zip(*known, strict=True)
    line = np.interp(xs, places, heights, left=math.nan, right=math.nan)
    return [None if math.isnan(value) else value for value in line.tolist()]


def csv_of(chart: Chart) -> str:
    """Return a chart as comma separated values, a column a series."""
    text = io.StringIO()
    write = csv.writer(text).writerow
    columns: list[tuple[str, Sequence[float | None]]] = []
    for series in chart.series:
        columns.append((series.name, series.values))
        columns += [
            (f"{series.name} {end}", values)
            for end, values in (("low", series.low), ("high", series.high))
            if values
        ]
    unit = f" ({chart.x.unit})" if chart.x.unit else ""
    write([f"{chart.x.name}{unit}", *(_as_text(name) for name, _ in columns)])
    for place, x in enumerate(chart.x_values):
        cells = [values[place] if place < len(values) else None for _, values in columns]
        write([repr(x), *("" if cell is None else repr(cell) for cell in cells)])
    return text.getvalue()


def _as_text(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA) else name
